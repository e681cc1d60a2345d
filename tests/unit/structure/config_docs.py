"""config_docs.py PROGRAM DOCUMENT: is the key table of docs/operations.md what the program prints?

The table stands between two comment lines; `tandem config --markdown` prints it.
"""

import pathlib
import subprocess
import sys

BEGIN = "<!-- tandem config --markdown -->"
END = "<!-- end of tandem config --markdown -->"

program, document = sys.argv[1:]
command = [program, "config", "--markdown"]
table = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
text = pathlib.Path(document).read_text(encoding="utf-8")
if text.count(BEGIN) != 1 or text.count(END) != 1:
    sys.exit(f"{document}: the key table must stand between the lines {BEGIN} and {END}")
documented = text.split(BEGIN)[1].split(END)[0].strip().splitlines()
known = table.strip().splitlines()
for line in known:
    if line not in documented:
        print(f"missing or outdated in {document}: {line}")
for line in documented:
    if line not in known:
        print(f"unknown to the program: {line}")
if documented != known:
    sys.exit(f"replace the table in {document} by what `tandem config --markdown` prints")
