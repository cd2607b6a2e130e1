"""Properties: whatever is recorded comes back, and no damage to a manifest goes unnoticed."""

import json

import pandas as pd
import pytest

from helpers import formats, recording, storage
from helpers.recording import RecordingError

hypothesis = pytest.importorskip("hypothesis")
st = pytest.importorskip("hypothesis.strategies")
given, settings = hypothesis.given, hypothesis.settings

NAME = "02_sweep"
TABLE = pd.DataFrame({"n": [64, 128], "us": [0.1, None], "ok": [True, False], "s": ["NA", ""]})
TEXTS = [
    "1e3",
    "64;128",
    "NA",
    "None",
    "nan",
    "",
    " ",
    "a,b",
    '"q"',
    "µs",
    "\\N",
    "a\nb\r",
    "True",
]


def same_table(one, other):
    """Equal in columns, dtypes and values; text may be object (pandas 2) or str (pandas 3)."""
    assert list(one.columns) == list(other.columns) and len(one) == len(other)
    for column in one.columns:
        assert one[column].dtype == other[column].dtype
        a, b = one[column].tolist(), other[column].tolist()
        for x, y in zip(a, b, strict=True):
            assert (pd.isna(x) and pd.isna(y)) or (x == y and type(x) is type(y)), column


number = st.floats(allow_nan=True, allow_infinity=True)
text = st.one_of(
    st.none(), st.sampled_from(TEXTS), st.text(st.characters(exclude_categories=["Cs"]))
)
columns = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint8": st.integers(0, 255),
    "float64": number,
    "float32": st.floats(width=32),
    "bool": st.booleans(),
    "object": text,
}


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 5))
    kinds = draw(st.lists(st.sampled_from(sorted(columns)), min_size=1, max_size=4))
    names = draw(
        st.lists(st.text('ab,"\n\\ 1µ', min_size=1), min_size=4, max_size=4, unique=True)
    )
    return pd.DataFrame(
        {
            name: pd.Series(
                draw(st.lists(columns[kind], min_size=rows, max_size=rows)),
                dtype=pd.Series(["x"]).dtype if kind == "object" else kind,
            )
            for name, kind in zip(names, kinds, strict=False)
        }
    )


@given(tables())
@settings(deadline=None, max_examples=200)
def test_any_table_survives(table):
    content, facts = formats.encode(table)
    facts = json.loads(json.dumps(facts))  # as the manifest keeps them
    back = formats.decode(content, facts)
    same_table(back, table)
    assert formats.encode(back) == (content, facts)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | number
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abµ"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abµ"), json_values, min_size=1))
@settings(deadline=None)
def test_any_dict_survives(value):
    assert repr(formats.decode(*formats.encode(value))) == repr(value)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@settings(deadline=None)
def test_any_text_survives(value):
    assert formats.decode(*formats.encode(value)) == value


@pytest.fixture(scope="module")
def recorded_table(tmp_path_factory):
    """The data directory with one recorded table in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_DATA", str(tmp_path_factory.mktemp("data")))
        patch.delenv("COURSE_GPU", raising=False)
        content, facts = formats.encode(TABLE)
        facts |= {"date": "2026-01-01", "torch": "2.11.0", "triton": "3.6.0", "driver": "580"}
        storage.write("nvidia-h200", NAME, {"gpu": "NVIDIA H200"}, content, facts)
        yield storage.data_dir()


@given(data=st.data())
@settings(deadline=None, max_examples=150)
def test_a_damaged_manifest_never_gives_a_wrong_table(recorded_table, data):
    path = recorded_table / "nvidia-h200" / "machine.json"
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        path.write_bytes(whole[:at])
    else:
        path.write_bytes(
            whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
        )
    try:
        back = recording.load(NAME)
    except RecordingError as error:
        assert "machine.json" in str(error) or NAME in str(error)
    else:
        same_table(back, TABLE)
    finally:
        path.write_bytes(whole)
