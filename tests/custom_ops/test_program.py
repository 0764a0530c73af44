"""The library's parser: it accepts and refuses what the Python one does, and names the line."""

from __future__ import annotations

import pytest

from onnxfuse.program import Program, ProgramError
from onnxfuse.program.instructions import BYTES, DTYPES, INSTRUCTIONS
from tests.custom_ops.library import LibraryError, TestLibrary

HEAD = "onnxfuse 1\nin x0 f32\nin x1 bool\nin c0 f32\n"

GOOD = {
    "smallest": "onnxfuse 1\nin x0 f32\nout x0\n",
    "every-input-form": "onnxfuse 1\nin x0 f32 pad 8\nin x1 bf16\nin c0 bool\nout x1\nout x1\nout c0\n",
    "const": HEAD + "t0 = const.f64 0x7ff0000000000000\nt1 = const.bool 0x01\nt2 = const.i8 0xff\nout t0\n",
    "select": HEAD + "t0 = select.bool.f32 x1 x0 c0\nt1 = select.bool.bool x1 x1 x1\nout t0\n",
    "compare": HEAD + "t0 = lt.f32.bool x0 c0\nt1 = eq.bool.bool x1 t0\nout t1\n",
    "cast": HEAD + "t0 = cast.f32.f16 x0\nt1 = cast.f16.f32 t0\nt2 = cast.bool.bool x1\nout t0\n",
    "most-inputs": "onnxfuse 1\n" + "".join(f"in x{k} f32\n" for k in range(64)) + "out x63\n",
    "most-outputs": "onnxfuse 1\nin x0 u8\n" + "out x0\n" * 32,
    "most-statements": HEAD + "".join(f"t{k} = neg.f32 x0\n" for k in range(4096)) + "out t4095\n",
}

# name: (text, line at fault, words of the library's message)
BAD = {
    "empty": ("", 1, "begins with"),
    "no-newline": ("onnxfuse 1", 1, "newline"),
    "other-version": ("onnxfuse 2\nin x0 f32\nout x0\n", 1, "begins with 'onnxfuse 1'"),
    "carriage-return": ("onnxfuse 1\r\nin x0 f32\r\nout x0\r\n", 1, "begins with"),
    "byte-order-mark": ("\ufeffonnxfuse 1\nin x0 f32\nout x0\n", 1, "begins with"),
    "no-input": ("onnxfuse 1\nt0 = const.f32 0x00000000\nout t0\n", 2, "no x input"),
    "only-c": ("onnxfuse 1\nin c0 f32\nout c0\n", 2, "no x input"),
    "no-output": (HEAD + "t0 = neg.f32 x0\n", 6, "no output"),
    "unknown-type": ("onnxfuse 1\nin x0 f8\nout x0\n", 2, "unknown type 'f8'"),
    "type-missing": ("onnxfuse 1\nin x0\nout x0\n", 2, "expected a type"),
    "input-gap": ("onnxfuse 1\nin x0 f32\nin x2 f32\nout x0\n", 3, "expected input x1"),
    "input-from-one": ("onnxfuse 1\nin x1 f32\nout x1\n", 2, "expected input x0"),
    "input-twice": ("onnxfuse 1\nin x0 f32\nin x0 f32\nout x0\n", 3, "expected input x1"),
    "x-behind-c": ("onnxfuse 1\nin x0 f32\nin c0 f32\nin x1 f32\nout x0\n", 4, "before the c inputs"),
    "input-name": ("onnxfuse 1\nin y0 f32\nout x0\n", 2, "expected an input"),
    "leading-zero": ("onnxfuse 1\nin x00 f32\nout x0\n", 2, "expected an input"),
    "huge-number": ("onnxfuse 1\nin x0 f32\nout x4294967296\n", 3, "expected a value"),
    "negative-number": ("onnxfuse 1\nin x0 f32\nout x-1\n", 3, "expected a value"),
    "pad-zero": ("onnxfuse 1\nin x0 f32 pad 0\nout x0\n", 2, "pad of 1 to 8"),
    "pad-nine": ("onnxfuse 1\nin x0 f32 pad 9\nout x0\n", 2, "pad of 1 to 8"),
    "pad-empty": ("onnxfuse 1\nin x0 f32 pad\nout x0\n", 2, "number of dims"),
    "pad-of-c": ("onnxfuse 1\nin x0 f32\nin c0 f32 pad 1\nout x0\n", 3, "nothing may follow"),
    "not-pad": ("onnxfuse 1\nin x0 f32 wide 1\nout x0\n", 2, "nothing may follow"),
    "two-blanks": ("onnxfuse 1\nin  x0 f32\nout x0\n", 2, "an empty word"),
    "blank-at-end": ("onnxfuse 1\nin x0 f32 \nout x0\n", 2, "an empty word"),
    "blank-line": ("onnxfuse 1\nin x0 f32\n\nout x0\n", 3, "expected 'in', a statement or 'out'"),
    "tab": ("onnxfuse 1\nin x0\tf32\nout x0\n", 2, "expected an input"),
    "comment": (HEAD + "# nothing\nout x0\n", 5, "expected 'in', a statement or 'out'"),
    "in-too-late": (HEAD + "t0 = neg.f32 x0\nin x2 f32\nout t0\n", 6, "expected a statement or 'out'"),
    "statement-too-late": (HEAD + "out x0\nt0 = neg.f32 x0\n", 6, "expected 'out' or the end"),
    "text-behind": (HEAD + "out x0\nmore\n", 6, "expected 'out' or the end"),
    "zero-byte": ("onnxfuse 1\nin x0 f32\nout x0\n\0", 4, "newline"),
    "temp-gap": (HEAD + "t1 = neg.f32 x0\nout t1\n", 5, "expected result t0"),
    "temp-name": (HEAD + "tx = neg.f32 x0\nout x0\n", 5, "expected a result"),
    "no-equals": (HEAD + "t0 : neg.f32 x0\nout t0\n", 5, "expected '='"),
    "unknown-instruction": (HEAD + "t0 = hypot.f32 x0 x0\nout t0\n", 5, "unknown instruction 'hypot'"),
    "no-type": (HEAD + "t0 = neg x0\nout t0\n", 5, "with its types"),
    "one-type-too-many": (HEAD + "t0 = neg.f32.f32 x0\nout t0\n", 5, "takes one type"),
    "compare-one-type": (HEAD + "t0 = lt.f32 x0 x0\nout t0\n", 5, "takes two types"),
    "compare-to-f32": (HEAD + "t0 = lt.f32.f32 x0 x0\nout t0\n", 5, "there is no instruction"),
    "select-by-f32": (HEAD + "t0 = select.f32.f32 x0 x0 x0\nout t0\n", 5, "there is no instruction"),
    "select-half": (HEAD + "t0 = select.bool.f16 x1 x1 x1\nout t0\n", 5, "there is no instruction"),
    "half-arithmetic": ("onnxfuse 1\nin x0 f16\nt0 = add.f16 x0 x0\nout t0\n", 3, "there is no instruction"),
    "three-types": (HEAD + "t0 = cast.f32.f64.f32 x0\nout t0\n", 5, "unknown type"),
    "operand-type": (HEAD + "t0 = add.f32 x0 x1\nout t0\n", 5, "'x1' of 'add.f32' is bool, not f32"),
    "select-operand-type": (HEAD + "t0 = select.bool.f32 x1 x0 x1\nout t0\n", 5, "is bool, not f32"),
    "too-few-operands": (HEAD + "t0 = add.f32 x0\nout t0\n", 5, "expected an operand"),
    "too-many-operands": (HEAD + "t0 = neg.f32 x0 x0\nout t0\n", 5, "nothing may follow"),
    "undefined": (HEAD + "t0 = neg.f32 t1\nout t0\n", 5, "'t1' is used before it is defined"),
    "itself": (HEAD + "t0 = neg.f32 t0\nout t0\n", 5, "'t0' is used before it is defined"),
    "undefined-x": (HEAD + "out x2\n", 5, "'x2' is used before it is defined"),
    "undefined-c": (HEAD + "out c1\n", 5, "'c1' is used before it is defined"),
    "operand-word": (HEAD + "t0 = neg.f32 y0\nout t0\n", 5, "expected a value"),
    "operand-letter": (HEAD + "t0 = neg.f32 x\nout t0\n", 5, "expected a value"),
    "out-nothing": (HEAD + "out \n", 5, "an empty word"),
    "out-two": (HEAD + "out x0 x1\n", 5, "nothing may follow"),
    "bits-short": (HEAD + "t0 = const.f32 0x0\nout t0\n", 5, "8 lower-case hex digits"),
    "bits-long": (HEAD + "t0 = const.u8 0x100\nout t0\n", 5, "2 lower-case hex digits"),
    "bits-upper": (HEAD + "t0 = const.u8 0xFF\nout t0\n", 5, "2 lower-case hex digits"),
    "bits-prefix": (HEAD + "t0 = const.u8 0Xff\nout t0\n", 5, "2 lower-case hex digits"),
    "bits-decimal": (HEAD + "t0 = const.u8 1\nout t0\n", 5, "2 lower-case hex digits"),
    "bool-two": (HEAD + "t0 = const.bool 0x02\nout t0\n", 5, "0x00 or 0x01"),
    "too-many-inputs": ("onnxfuse 1\n" + "".join(f"in x{k} f32\n" for k in range(65)) + "out x0\n", 66, "more than 64"),
    "too-many-outputs": ("onnxfuse 1\nin x0 u8\n" + "out x0\n" * 33, 35, "more than 32"),
    "too-many-statements": (
        HEAD + "".join(f"t{k} = neg.f32 x0\n" for k in range(4097)) + "out x0\n", 4101, "more than 4096"),
    "too-long": (HEAD + "out x0\n" + "#" * (1 << 20), 1, "limit is 1048576"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_accepted(library: TestLibrary, name: str) -> None:
    Program.parse(GOOD[name])
    library.parse(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_refused(library: TestLibrary, name: str) -> None:
    text, line, words = BAD[name]
    with pytest.raises(ProgramError):
        Program.parse(text)
    with pytest.raises(LibraryError, match=f"^line {line}: ") as caught:
        library.parse(text)
    assert words in str(caught.value)
    assert caught.value.code == 1


def test_ten_megabytes(library: TestLibrary) -> None:
    with pytest.raises(LibraryError, match="limit is 1048576"):
        library.parse("onnxfuse 1\n" + "in x0 f32\n" * (1 << 20))


def test_messages_are_short_and_printable(library: TestLibrary) -> None:
    for junk in (b"\xff\xfe\x00", b"\x1b[31m", b"\xe2\x82\xac" * 1000):
        with pytest.raises(LibraryError) as caught:
            library.parse(b"onnxfuse 1\nin x0 f32\nt0 = " + junk + b" x0\nout t0\n")
        message = str(caught.value)
        assert message.isprintable()
        assert message.isascii()
        assert len(message) < 200


def instruction_texts(name: str) -> dict[str, list[str]]:
    """Operand types of every opcode of an instruction."""
    row = INSTRUCTIONS[name]
    match row.form:
        case "compare":
            return {f"{name}.{t}.bool": [t, t] for t in row.types}
        case "select":
            return {f"{name}.bool.{t}": ["bool", t, t] for t in row.types}
        case "cast":
            return {f"{name}.{s}.{d}": [s] for s in row.types for d in row.types}
        case "const":
            return {f"{name}.{t}": [] for t in row.types}
        case _:
            return {f"{name}.{t}": [t] * row.arity for t in row.types}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_every_opcode(library: TestLibrary, name: str) -> None:
    """Exactly the types of the table are accepted, in all combinations of the form."""
    opcodes = instruction_texts(name)
    form = INSTRUCTIONS[name].form
    two = [f"{name}.{a}.{b}" for a in DTYPES for b in DTYPES]
    for opcode in two if form in ("compare", "select", "cast") else [f"{name}.{t}" for t in DTYPES]:
        types = opcodes.get(opcode, [])
        inputs = "".join(f"in x{k} {t}\n" for k, t in enumerate(types or ["f32"]))
        operands = [f"x{k}" for k in range(len(types))]
        if form == "const":
            operands = ["0x" + "00" * BYTES[opcode.split(".")[1]]]
        text = f"onnxfuse 1\n{inputs}t0 = {' '.join([opcode, *operands])}\nout t0\n"
        if opcode in opcodes:
            library.parse(text)
        else:
            with pytest.raises(LibraryError, match=r"^line 3: there is no instruction"):
                library.parse(text)
