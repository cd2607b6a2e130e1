"""The table of peaks, the refusals, and nvidia-smi in every mood."""

import csv
import math
import re
import subprocess
import sys
import types

import pytest
import torch

from helpers import device, nvidia_smi
from helpers.storage import repo_root

DATA = repo_root() / "data"


def table(name):
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


GPUS = table("gpus.csv")
NAMES = [(name, row) for row in GPUS for name in row["names"].split(";")]


@pytest.mark.parametrize(("name", "row"), NAMES, ids=[name for name, _ in NAMES])
def test_every_listed_name_gives_its_own_row(name, row):
    for dtype in ("fp32", "tf32", "fp16", "bf16"):
        cell = row[f"{dtype}_tflops"]
        expected = pytest.approx(float(cell) * 1e12) if cell else None
        assert device.peak(name, dtype) == expected
        assert device.peak(name.upper().removeprefix("NVIDIA "), dtype) == expected
    cell = row["bandwidth_gbs"]
    assert device.bandwidth(name) == (float(cell) * 1e9 if cell else None)


def test_no_name_is_listed_twice_and_every_row_has_a_source():
    keys = [name.lower().removeprefix("nvidia ") for name, _ in NAMES]
    assert len(keys) == len(set(keys))
    assert all(row["source"].strip() and row["card"].strip() for row in GPUS)


@pytest.mark.parametrize("row", GPUS, ids=lambda row: row["names"])
def test_the_table_agrees_with_itself(row):
    rates = {
        key: float(row[f"{key}_tflops"] or "nan") for key in ("fp32", "tf32", "fp16", "bf16")
    }
    if row["bf16_tflops"]:
        assert rates["bf16"] == rates["fp16"], "tensor cores run both formats at one rate"
        # Dense TF32 is half of dense bf16 on every card: a sparse figure would break this.
        assert rates["tf32"] == pytest.approx(rates["bf16"] / 2, rel=0.02)
    if float(row["capability"]) < 8:
        assert not row["bf16_tflops"] and not row["tf32_tflops"]


# FLOPs a clock and SM, dense, with the boost clock in GHz: counted from the architecture, not
# copied from the datasheet, so that a sparse or mistyped figure shows.
@pytest.mark.parametrize(
    ("name", "per_clock", "ghz"),
    [
        ("NVIDIA H200", 4096, 1.83),
        ("NVIDIA H100 80GB HBM3", 4096, 1.83),
        ("NVIDIA H100 PCIe", 4096, 1.62),
        ("NVIDIA A100-SXM4-80GB", 2048, 1.41),
        ("NVIDIA A30", 2048, 1.44),
        ("NVIDIA L4", 1024, 2.04),
        ("NVIDIA L40", 512, 2.49),
        ("NVIDIA L40S", 1024, 2.52),
        ("NVIDIA RTX 6000 Ada Generation", 1024, 2.505),
        ("NVIDIA A10", 1024, 1.695),
        ("NVIDIA A40", 1024, 1.74),
        ("NVIDIA A10G", 512, 1.71),
        ("NVIDIA RTX A6000", 1024, 1.80),
        ("Tesla T4", 1024, 1.59),
        ("Tesla V100-SXM2-16GB", 1024, 1.53),
        ("NVIDIA B200", 8192, 1.86),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1024, 2.617),
        ("NVIDIA GeForce RTX 5090", 512, 2.407),
        ("NVIDIA GeForce RTX 4090", 512, 2.52),
        ("NVIDIA GeForce RTX 3090", 512, 1.695),
    ],
)
def test_peaks_follow_from_sms_and_clock(name, per_clock, ghz):
    sms = int(dict(NAMES)[name]["sms"])
    assert device.peak(name, "fp16") == pytest.approx(sms * per_clock * ghz * 1e9, rel=0.02)


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H100 PCIe", "bf16", 756.5),  # 1513 is sparse
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989.5),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),  # 624 is sparse
        ("NVIDIA A100-SXM4-80GB", torch.float32, 19.5),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("Tesla T4", torch.float16, 65),
        ("NVIDIA L4", "torch.bfloat16", 121),
        ("nvidia  h200", "BF16", 989.5),
        ("H200", "half", 989.5),
    ],
)
def test_known_peaks(name, dtype, tflops):
    assert device.peak(name, dtype) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA GH200 480GB",
        "NVIDIA H20",
        "NVIDIA H800",
        "NVIDIA H100",
        "NVIDIA A100",
        "NVIDIA",
        "AMD Instinct MI300X",
        " ",
        "",
        None,
    ],
)
def test_what_is_not_listed_is_unknown(name):
    assert device.peak(name, "bf16") is None
    assert device.bandwidth(name) is None


def test_what_a_card_cannot_do_has_no_peak():
    assert device.peak("Tesla T4", torch.bfloat16) is None
    assert device.peak("Tesla T4", "tf32") is None
    assert device.peak("NVIDIA GeForce GTX 1650", "fp16") is None


@pytest.mark.parametrize("dtype", ["fp8", "int8", torch.float64, "", None, "sparse"])
def test_an_unknown_dtype_is_an_error_that_lists_the_known(dtype):
    with pytest.raises(ValueError, match="bf16.*tf32"):
        device.peak("NVIDIA H200", dtype)


def test_a_card_object_serves_as_well_as_its_name():
    card = device.Card("NVIDIA H200", "9.0", 132, 1, 1, 1)
    assert device.peak(card, "bf16") == device.peak("NVIDIA H200", "bf16")
    assert device.bandwidth(card) == 4.8e12


def test_a_card_of_another_size_is_another_card():
    half = device.Card("NVIDIA H200", "9.0", 66, 1, 1, 1)
    assert device.peak(half, "bf16") is None and device.bandwidth(half) is None


@pytest.mark.parametrize("card", [5, torch.device("cuda"), ["NVIDIA H200"], torch.bfloat16])
def test_what_is_no_card_is_refused(card):
    with pytest.raises(TypeError, match="card is a Card, torch's name of a device or None"):
        device.peak(card, "bf16")
    with pytest.raises(TypeError, match="card is a Card"):
        device.bandwidth(card)


def test_swapped_arguments_are_hinted_at():
    for dtype in ("bf16", torch.bfloat16):
        with pytest.raises(ValueError, match=r"peak\(card, dtype\): are they swapped\?"):
            device.peak(dtype, "NVIDIA H200")
    with pytest.raises(ValueError) as error:
        device.peak("NVIDIA H200", "int4")
    assert "swapped" not in str(error.value)


def test_fraction():
    assert device.fraction(1 + 1e-12, 1) == 1.0, "rounding is no error"
    assert device.fraction(1e12, 4e12) == 0.25
    assert device.fraction(0, 4e12) == 0
    assert device.fraction(4e12, 4e12) == 1.0
    assert device.fraction(1e12, None) is None


def test_a_fraction_above_one_is_refused_with_its_likely_causes():
    with pytest.raises(ValueError) as error:
        device.fraction(1.3e15, 1.0e15, "matmul 4096")
    text = str(error.value)
    assert text.startswith("matmul 4096: 1.3e+15 is 130.0% of the peak")
    assert all(cause in text for cause in ("synchronise", "L2", "sparse", "card", "dtype"))
    with pytest.raises(ValueError):
        device.fraction(1.0001, 1.0)


@pytest.mark.parametrize(
    "pair", [(math.nan, 1), (-1, 1), (math.inf, 1), (1, 0), (1, math.nan)]
)
def test_fraction_refuses_what_is_no_rate(pair):
    with pytest.raises(ValueError, match="must be"):
        device.fraction(*pair)


# --- torch.cuda, faked -------------------------------------------------------------------


@pytest.fixture
def fake_gpu(monkeypatch):
    """A function that gives torch a GPU; bf16 can be native, emulated or absent."""

    def install(capability=(9, 0), bf16="native", **properties):
        found = types.SimpleNamespace(
            name="NVIDIA H200",
            major=capability[0],
            minor=capability[1],
            multi_processor_count=132,
            total_memory=150_109_880_320,
            L2_cache_size=62_914_560,
            shared_memory_per_block_optin=232_448,
            uuid="6f0981c2-2285-7218-566c-99b4378a3a62",
            pci_domain_id=0,
            pci_bus_id=0x4B,
            pci_device_id=0,
        )
        vars(found).update(properties)
        answers = {"native": (True, True), "emulated": (True, False), "absent": (False, False)}
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: found)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True: answers[bf16][0 if including_emulation else 1],
        )
        monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
        return found

    return install


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("capability", "bf16", "expected"),
    [
        ((7, 5), "emulated", torch.float16),
        ((7, 0), "absent", torch.float16),
        ((8, 0), "native", torch.bfloat16),
        ((8, 9), "native", torch.bfloat16),
        ((10, 0), "native", torch.bfloat16),
        ((8, 6), "absent", torch.float16),
        ((7, 5), "native", torch.float16),
    ],
)
def test_native_dtype_excludes_emulation(fake_gpu, capability, bf16, expected):
    fake_gpu(capability, bf16)
    assert device.native_dtype() is expected


def test_without_a_gpu(no_gpu):
    assert device.gpu() is None
    assert device.native_dtype() is torch.bfloat16
    with pytest.raises(RuntimeError, match="recording"):
        device.ceilings()


def test_gpu_reads_torchs_properties(fake_gpu):
    fake_gpu()
    assert device.gpu() == device.Card(
        "NVIDIA H200", "9.0", 132, 150_109_880_320, 62_914_560, 232_448
    )


def test_out_of_memory_halves_and_says_so(monkeypatch, capsys):
    asked = []

    def measure(size):
        asked.append(size)
        if size > 2**30:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return size

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert device._halving(measure, 2**32, 2**24, "bytes copied") == 2**30
    assert asked == [2**32, 2**31, 2**30]
    assert "bytes copied halved to 1,073,741,824" in capsys.readouterr().out
    with pytest.raises(torch.OutOfMemoryError):
        device._halving(measure, 2**34, 2**33, "bytes copied")


# --- nvidia-smi, faked -------------------------------------------------------------------


@pytest.fixture
def smi(monkeypatch):
    """Answers by query; returns the list of commands; refuses unknown fields as it does."""
    commands = []

    def install(answers, refuse=()):
        def run(command, **_):
            commands.append(command)
            target = command[command.index("-i") + 1] if "-i" in command else None
            query = next(part.split("=", 1)[1] for part in command if "--query-" in part)
            if target in refuse:
                return types.SimpleNamespace(returncode=6, stdout="No devices were found\n")
            if query not in answers:
                text = f'Field "{query}" is not a valid field to query.\n'
                return types.SimpleNamespace(returncode=2, stdout=text)
            return types.SimpleNamespace(returncode=0, stdout=answers[query])

        monkeypatch.setattr(nvidia_smi.subprocess, "run", run)
        return commands

    return install


STATE = "clocks.sm,clocks.mem,power.draw,temperature.gpu"
EVENTS, OLD_EVENTS = "clocks_event_reasons.active", "clocks_throttle_reasons.active"


def test_clocks_of_an_idle_gpu(fake_gpu, smi):
    fake_gpu()
    smi({STATE: "1980, 3201, 126.28, 39\n", EVENTS: "0x0000000000000001\n"})
    assert device.clocks() == {
        "sm_mhz": 1980,
        "memory_mhz": 3201,
        "power_w": 126.28,
        "temperature_c": 39,
        "throttle": "idle",
    }


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0x0000000000000000", "none"),
        ("0x0000000000000004", "power cap"),
        ("0x0000000000000024", "power cap, heat"),
        ("0x0000000000000048", "slowdown, heat (hardware)"),
    ],
)
def test_throttle_reasons(fake_gpu, smi, bits, text):
    fake_gpu()
    smi({STATE: "1980, 3201, 126.28, 39\n", EVENTS: f"{bits}\n"})
    assert device.clocks()["throttle"] == text


def test_older_drivers_name_the_reasons_otherwise(fake_gpu, smi):
    fake_gpu()
    smi({STATE: "1980, 3201, 126.28, 39\n", OLD_EVENTS: "0x4\n"})
    assert device.clocks()["throttle"] == "power cap"


@pytest.mark.parametrize("word", ["[N/A]", "[Not Supported]", "N/A", "[Unknown Error]", ""])
def test_what_nvidia_smi_does_not_know_is_left_out(fake_gpu, smi, word):
    fake_gpu()
    smi({STATE: f"1980, {word}, {word}, 39\n", EVENTS: f"{word}\n" if word else ""})
    assert device.clocks() == {"sm_mhz": 1980, "temperature_c": 39}


@pytest.mark.parametrize(
    "failure", [FileNotFoundError("nvidia-smi"), subprocess.TimeoutExpired("nvidia-smi", 5)]
)
def test_nvidia_smi_absent_or_hanging(fake_gpu, monkeypatch, failure):
    fake_gpu()
    calls = []

    def run(*arguments, **_):
        calls.append(arguments)
        raise failure

    monkeypatch.setattr(nvidia_smi.subprocess, "run", run)
    assert device.clocks() == {}
    assert len(calls) == 1, "a hanging nvidia-smi must not be waited for again and again"
    assert device.other_processes() is None
    assert device.versions()["driver"] is None
    assert nvidia_smi.names() == []


@pytest.mark.parametrize("output", ["", "\n", "garbage\n"])
def test_nonsense_from_nvidia_smi(fake_gpu, smi, output):
    fake_gpu()
    smi({STATE: output, EVENTS: output, "driver_version": output})
    assert device.clocks() == {}
    assert device.versions()["driver"] is None


def test_the_gpu_is_named_by_its_pci_address(fake_gpu, smi):
    fake_gpu()
    commands = smi({STATE: "1, 2, 3, 4\n"})
    device.clocks()
    assert commands[0][1:3] == ["-i", "00000000:4b:00.0"]


def test_then_by_uuid_and_last_by_the_visible_index(fake_gpu, smi, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    fake_gpu()
    commands = smi({STATE: "1, 2, 3, 4\n"}, refuse=["00000000:4b:00.0"])
    assert device.clocks()["sm_mhz"] == 1
    assert commands[1][2] == "GPU-6f0981c2-2285-7218-566c-99b4378a3a62"
    found = fake_gpu()
    for name in ("pci_bus_id", "uuid"):
        delattr(found, name)
    commands.clear()
    assert device.clocks()["sm_mhz"] == 1
    assert commands[0][2] == "3"


@pytest.mark.parametrize(
    ("visible", "asked"),
    [(None, "0"), ("", "0"), ("2", "2"), (" 5 , 6", "5"), ("GPU-ab", "GPU-ab")],
)
def test_visible_devices(fake_gpu, smi, monkeypatch, visible, asked):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = fake_gpu()
    for name in ("pci_bus_id", "uuid"):
        delattr(found, name)
    commands = smi({STATE: "1, 2, 3, 4\n"})
    device.clocks()
    assert commands[0][2] == asked


@pytest.mark.parametrize(
    ("output", "others"),
    [
        ("425\n", 0),
        ("425\n812\n", 1),
        ("425\n425\n", 0),
        ("", None),  # not even this process: the list is hidden
        ("[N/A]\n", None),
        ("No running processes found\n", None),
    ],
)
def test_other_processes(fake_gpu, smi, output, others):
    fake_gpu()
    smi({"pid": output})
    assert device.other_processes() == others


def test_without_a_gpu_every_process_is_another(no_gpu, smi):
    commands = smi({"pid": "7\n8\n"})
    assert device.other_processes() == 2
    assert "-i" not in commands[0]


def test_versions(no_gpu, smi, monkeypatch):
    smi({"driver_version": "580.159.04\n580.159.04\n"})
    found = device.versions()
    assert found["torch"] == torch.__version__ and found["driver"] == "580.159.04"
    assert re.match(r"3\.\d+", found["python"])
    monkeypatch.setitem(sys.modules, "triton", None)
    assert device.versions()["triton"] is None


# --- the other table ---------------------------------------------------------------------


def test_published_figures_are_complete_and_unique():
    rows = table("published.csv")
    assert len(rows) >= 40
    for row in rows:
        assert row["source"] and row["unit"]
        assert all(math.isfinite(float(value)) for value in row["value"].split(";"))
    keys = [(row["experiment"], row["quantity"]) for row in rows]
    assert len(keys) == len(set(keys))


def test_importing_device_loads_no_torch():
    code = "import sys, helpers.device; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=repo_root()).returncode == 0
