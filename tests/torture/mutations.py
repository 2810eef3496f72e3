"""Random edits of bytes, of recipes and of command lines."""

import re

ODD_VALUES = [
    "0", "-1", "1", "2", "3", "7", "0.5", "1.5", "1e9", "1000000000", "4294967296", "9223372036854775807", "-9223372036854775808",
    "18446744073709551616", "1e308", "-1e308", "1e-320", "nan", ".inf", "-.inf", "0x10", "010", "1_000", "1e4",
    "true", "no", "null", "~", '""', '" "', "[]", "{}", "[1, 2]", "{a: 1}", "{kind: none}", "text", "../x", "/dev/zero",
    "/nonexistent", "ä", '"\\0"', "softmax", "{name: lavo}", "{name: nonsense}", "!!int 3", "*a", "&a 1", "|", ">-",
    "[" * 60, "a" * 5000,
]  # fmt: skip


def mutate_bytes(random, data):
    """Another content, and what was done to it."""
    while True:
        changed, what = _mutate_once(random, bytearray(data))
        if bytes(changed) != data:
            return bytes(changed), what


def _mutate_once(random, data):
    kind = random.choice(["flip", "flip", "flip", "set", "cut", "cut", "empty", "append", "swap", "zero"])
    if not data:
        kind = "append"
    size = len(data)
    if kind == "flip":
        places = [random.randrange(size) for _ in range(random.choice([1, 1, 2, 4, 16]))]
        for place in places:
            data[place] ^= 1 << random.randrange(8)
        return data, f"{len(places)} flipped bits"
    if kind == "set":
        place = random.randrange(size)
        data[place] = random.choice([0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x22, random.randrange(256)])
        return data, f"byte {place} replaced"
    if kind == "cut":
        length = random.choice([random.randrange(size), size - 1])
        return data[:length], f"cut to {length} bytes"
    if kind == "empty":
        return bytearray(), "emptied"
    if kind == "append":
        more = random.randrange(1, 64)
        return data + random.randbytes(more), f"{more} bytes appended"
    length = random.randrange(1, min(size, 64) + 1)
    at = random.randrange(size - length + 1)
    if kind == "zero":
        data[at : at + length] = bytes(length)
        return data, f"{length} bytes at {at} set to zero"
    other = random.randrange(size - length + 1)
    data[at : at + length] = data[other : other + length]
    return data, f"{length} bytes at {other} copied to {at}"


def mutate_recipe(random, text):
    """A recipe with one to three random edits."""
    for _ in range(random.choice([1, 1, 2, 3])):
        text = _edit_recipe(random, text)
    return text


def _edit_recipe(random, text):
    lines = text.splitlines()
    kind = random.choice(["value"] * 6 + ["key", "drop", "twice", "indent", "bytes", "swap"])
    if kind == "value":
        values = list(re.finditer(r"(?<=: )[^\s,{}\[\]]+", text))
        if values:
            found = random.choice(values)
            return text[: found.start()] + random.choice(ODD_VALUES) + text[found.end() :]
    if kind == "key":
        keys = list(re.finditer(r"[a-z_]+(?=:)", text))
        if keys:
            found = random.choice(keys)
            at = random.randrange(found.start(), found.end())
            return text[:at] + random.choice("abz_0:{") + text[at + random.randrange(2) :]
    if kind == "bytes" or not lines:
        data = text.encode("utf-8", "surrogateescape")
        return mutate_bytes(random, data)[0].decode("utf-8", "surrogateescape")
    at = random.randrange(len(lines))
    if kind == "drop":
        del lines[at]
    elif kind == "twice":
        lines.insert(at, lines[at])
    elif kind == "indent":
        lines[at] = " " * random.randrange(1, 4) + lines[at]
    else:
        other = random.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines) + "\n"


def odd_override(random, keys):
    """key=value for the command line."""
    key = random.choice(keys)
    if random.random() < 0.1:
        key = key[:-1]
    # A kind of file that never ends is data, and the program's refusal of it is tested apart.
    return f"{key}={random.choice(ODD_VALUES)}"
