"""The folder that tools/gpu_check fills: results.jsonl, report.md, failures.log and what else a mode names.

Everything is appended at once, so that a run that is cut off keeps what it had and several calls
share a folder. A line of results.jsonl is a JSON object with its "mode"; the first of a call has
"date", "build" and "about".
"""

import json
import os
import time

LOGGED_CASE_BYTES = 64 << 10
LOGGED_BYTES = 12 << 20


class Results:
    def __init__(self, folder, mode, build, about, has_page=True):
        """Begins a call's part of the folder, whose build is `build` and whose machine `about` describes."""
        self.folder, self.mode, self.build, self.has_page = folder, mode, build, has_page
        os.makedirs(folder, exist_ok=True)
        now = time.gmtime()
        self.record(date=time.strftime("%Y-%m-%dT%H:%M:%SZ", now), build=build, about=about)
        when = time.strftime("%Y-%m-%d %H:%M:%S", now)
        self.report(f"\n# gpu_check {mode}, {when} UTC\n\n```\n{about}\n```\n")

    def path(self, name):
        return os.path.join(self.folder, name)

    def append(self, name, text):
        with open(self.path(name), "a", encoding="utf-8") as out:
            out.write(text)

    def record(self, **fields):
        self.append("results.jsonl", json.dumps({"mode": self.mode, **fields}) + "\n")

    def report(self, text):
        if self.has_page:
            self.append("report.md", text + "\n")

    def table(self, *columns):
        self.report("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))

    def row(self, *cells):
        cells = (str(cell).replace("\n", " ").replace("|", "\\|") for cell in cells)
        self.report("| " + " | ".join(cells) + " |")

    def log(self, title, output):
        """The output of what failed: its beginning and end where it is long."""
        half = LOGGED_CASE_BYTES // 2
        if len(output) > 2 * half:
            output = output[:half] + "\n[...]\n" + output[-half:]
        path = self.path("failures.log")
        if not os.path.exists(path) or os.path.getsize(path) < LOGGED_BYTES:
            self.append("failures.log", f"=== {self.mode} {title}\n{output}\n")

    def earlier(self):
        """The records of earlier calls of this mode with the same build."""
        found, same = [], False
        with open(self.path("results.jsonl"), encoding="utf-8") as lines:
            for line in lines:
                try:
                    fields = json.loads(line)
                except ValueError:
                    continue  # cut off
                if fields["mode"] != self.mode:
                    continue
                if "build" in fields:
                    same = fields["build"] == self.build
                elif same:
                    found.append(fields)
        return found
