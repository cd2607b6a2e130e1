"""What only a GPU can prove: properties, ceilings below the peaks, nvidia-smi, the doctor."""

import contextlib
import io
import time

import pytest
import torch

from helpers import device, doctor, doctor_gpu

pytestmark = pytest.mark.gpu


def test_the_card_is_what_torch_says():
    card = device.gpu()
    assert card.name == torch.cuda.get_device_name()
    assert card.sms > 0 and card.memory_bytes > 2**30
    assert card.l2_bytes >= 2**19 and card.shared_bytes >= 48 * 1024


def test_native_dtype_is_not_emulated():
    modern = torch.cuda.get_device_capability() >= (8, 0)
    assert device.native_dtype() is (torch.bfloat16 if modern else torch.float16)


def test_ceilings_are_below_the_peaks_and_not_far_below():
    found = device.ceilings()
    card = device.gpu()
    matmul = device.fraction(
        found["matmul_flops"], device.peak(card, found["dtype"]), "matmul"
    )
    copy = device.fraction(found["copy_bytes_per_s"], device.bandwidth(card), "copy")
    assert matmul is None or matmul > 0.4
    assert copy is None or copy > 0.6


def test_the_copy_ceiling_is_no_l2_rate():
    found = [device.ceilings(gib)["copy_bytes_per_s"] for gib in (0.5, 1.0, 2.0)]
    assert min(found) == pytest.approx(max(found), rel=0.1)


def test_a_nearly_full_gpu_is_measured_smaller_and_says_so(capsys):
    free = torch.cuda.mem_get_info()[0]
    hog = torch.empty(free - 3 * 2**30, dtype=torch.uint8, device="cuda")
    try:
        found = device.ceilings()
    finally:
        del hog
        torch.cuda.empty_cache()
    assert found["copy_bytes_per_s"] > 0 and found["matmul_flops"] > 0
    assert "GiB of GPU memory free" in capsys.readouterr().out


def test_nvidia_smi_reads_the_clock_and_the_company():
    state = device.clocks()
    if not state:
        pytest.skip("nvidia-smi is unreadable here")
    assert 100 < state["sm_mhz"] < 4000
    others = device.other_processes()
    assert others is None or others >= 0


def test_the_doctors_own_kernels_run():
    for examine in (
        doctor_gpu.profiled_kernels,
        doctor_gpu.triton_kernel,
        doctor_gpu.compiled_kernel,
    ):
        status, detail, _ = examine()
        assert status == "PASS", f"{examine.__name__}: {detail}"


def test_the_doctor_takes_under_15_seconds_and_sends_you_live():
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert doctor.main() == 0
    assert time.perf_counter() - start < 15
    assert torch.cuda.get_device_name() in out.getvalue()
