"""Checks what a compiler does not: who includes whom, sizes, and words that must not appear.

rules.py ROOT             all rules, on every source file below ROOT
rules.py ROOT --self-test the rules themselves, on text that breaks each of them
"""

import pathlib
import re
import sys

LINES_MAX = 600
COLUMNS_MAX = 100
SKIPPED = {".git", ".venv", "build", "models", "var", "shared", "__pycache__"}
CODE = {".h", ".cpp", ".py", ".sh"}
TEXT = CODE | {".cmake", ".txt", ".yaml", ".md", ".json", ""}

# Module to what it may include: a module, or one header of it. Arrows point one way.
ENGINE_FACTS = ["engine/tokenizer.h", "engine/sampling.h", "engine/chunk_grid.h"]
ARROWS = {
    "common": [],
    "engine": ["common"],
    "link": ["common", "engine/sampling.h"],
    "scheduler": ["common"],
    "transfer": ["common", "engine", "link"],
    "worker": ["common", "engine", "link", "scheduler", "transfer"],
    "prefill_worker": ["common", "engine", "link", "scheduler", "transfer", "worker"],
    "decode_worker": ["common", "engine", "link", "scheduler", "transfer", "worker"],
    "router": ["common", "link", "scheduler", *ENGINE_FACTS],
    "cli": ["common", "link", "scheduler", "simulator", "bench", "engine/tokenizer.h"],
    "bench": ["common"],
    "simulator": ["common", "scheduler", "bench"],
}

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
# Split, so that this file does not break its own rules.
OPEN_ENDS = re.compile(r"\b(" + "TO" + "DO|FIX" + r"ME)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(work/|home/\w|root/|tmp/w/|Users/)")
UNBOUNDED = re.compile(r"\.detach\(\)|\bsleep_for\(|\bsleep_until\(|\busleep\(|\bnanosleep\(")


def check_includes(path, lines):
    allowed = ARROWS.get(path.split("/")[0])
    if allowed is None:
        return
    own = path.split("/")[0]
    for number, line in enumerate(lines, 1):
        found = INCLUDE.match(line)
        if not found or "/" not in found[1]:
            continue
        module = found[1].split("/")[0]
        if module in ARROWS and module not in [own, *allowed] and found[1] not in allowed:
            yield number, f"{own} must not include {found[1]}"


def check_sizes(path, lines):
    if len(lines) > LINES_MAX:
        yield len(lines), f"longer than {LINES_MAX} lines"
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX:
            yield number, f"{len(line)} columns; at most {COLUMNS_MAX}"


def check_words(path, lines):
    for number, line in enumerate(lines, 1):
        if OPEN_ENDS.search(line):
            yield number, "an open end: do it, or file it"
        if MACHINE_PATHS.search(line):
            yield number, "a path of one machine"


def check_header(path, lines):
    if not path.endswith(".h"):
        return
    code = next((i for i, line in enumerate(lines) if not line.startswith("//")), 0)
    if code == 0 or lines[code] != "#pragma once":
        yield 1, "a header opens with what it is for, then #pragma once"


def check_waits(path, lines):
    if path.startswith("tests/") or not path.endswith((".h", ".cpp")):
        return
    for number, line in enumerate(lines, 1):
        if UNBOUNDED.search(line.split("//")[0]):
            yield number, "a detached thread, or sleeping to wait for something"


def violations(path, text):
    lines = text.splitlines()
    suffix = pathlib.PurePath(path).suffix
    rules = [check_words] if suffix in TEXT else []
    if suffix in CODE:
        rules += [check_includes, check_sizes, check_header, check_waits]
    for rule in rules:
        for number, message in rule(path, lines):
            yield f"{path}:{number}: {message}"


def source_files(root):
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if path.is_file() and not SKIPPED & set(relative.parts) and path.suffix in TEXT:
            yield path, relative.as_posix()


def self_test():
    header = "// What it is for.\n#pragma once\n"
    cases = [
        ("engine/a.h", header + '#include "transfer/stream.h"', True),
        ("engine/a.h", header + '#include "common/log.h"\n#include "engine/b.h"', False),
        ("link/a.h", header + '#include "engine/sampling.h"', False),
        ("link/a.h", header + '#include "engine/engine.h"', True),
        ("router/a/b.cpp", '#include "engine/engine.h"', True),
        ("router/a/b.cpp", '#include "engine/tokenizer.h"', False),
        ("worker/a.cpp", '#include "boost/asio.hpp"', False),
        ("common/a.cpp", "x" * (COLUMNS_MAX + 1), True),
        ("common/a.cpp", "\u00e9" * COLUMNS_MAX, False),
        ("common/a.cpp", "x\n" * (LINES_MAX + 1), True),
        ("common/a.cpp", "// " + "TO" + "DO later", True),
        ("docs/a.md", "see /ho" + "me/somebody/x", True),
        ("docs/a.md", "/v1/workers and ./work/x", False),
        ("common/a.h", "#pragma once\n", True),
        ("common/a.cpp", "thread.det" + "ach();", True),
        ("tests/unit/a.cpp", "std::this_thread::sleep" + "_for(1s);", False),
    ]
    wrong = [case for case in cases if bool(list(violations(case[0], case[1]))) != case[2]]
    for path, text, expected in wrong:
        print(f"self-test: {path} {text[:60]!r}: expected {'a violation' if expected else 'none'}")
    return len(wrong)


def main():
    root = pathlib.Path(sys.argv[1])
    if sys.argv[2:] == ["--self-test"]:
        return 1 if self_test() else 0
    count, files = 0, 0
    for path, relative in source_files(root):
        data = path.read_bytes()
        if b"\0" in data:
            continue
        files += 1
        for violation in violations(relative, data.decode("utf-8", errors="replace")):
            count += 1
            print(violation)
    print(f"{files} files, {count} violations")
    return 1 if count or not files else 0


if __name__ == "__main__":
    sys.exit(main())
