#!/usr/bin/env python3
"""Tests tools/scaling: its model by hand, its refusals, and with a program given a measurement of small sizes."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
SCALING = os.path.join(ROOT, "tools/scaling")
PROGRAM = sys.argv.pop(1)
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("scaling", SCALING)
scaling = importlib.util.module_from_spec(importlib.util.spec_from_loader("scaling", loader))
loader.exec_module(scaling)


def run(*words):
    return subprocess.run([SCALING, *words], capture_output=True, text=True, timeout=200)


class Model(unittest.TestCase):
    def test_sums_hide_behind_the_backward_pass(self):
        # Forward 1 s, backward 2 s: buckets are ready at 2 s and 3 s.
        self.assertAlmostEqual(scaling.update_seconds(3, [0, 0]), 3)
        self.assertAlmostEqual(scaling.update_seconds(3, [0.5, 0.5]), 3.5)
        self.assertAlmostEqual(scaling.update_seconds(3, [2, 2]), 6)
        self.assertAlmostEqual(scaling.update_seconds(3, [1]), 4)

    def test_what_takes_processors_hides_nowhere(self):
        self.assertAlmostEqual(scaling.update_seconds(3, [0.5, 0.5], busy=0.5), 4.5)

    def test_buckets_hold_all_gradients(self):
        self.assertEqual(scaling.buckets_of(10, 4), [4, 4, 2])
        self.assertEqual(scaling.buckets_of(8, 4), [4, 4])

    def test_predictions_follow_the_links(self):
        words = ["--gpus", "1,2,16", "--step-ms", "100", "--tokens", "1000", "--parameters", "1000000", "--bucket-mib",
                 "1000", "--inside", "1", "--between", "0.1", "--latency-us", "1000", "--json"]
        outcome = run("predict", *words)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        one, two, many = json.loads(outcome.stdout)["points"]
        self.assertAlmostEqual(one["tokens_per_s"], 10_000)
        # 4 MB by two steps of 1 ms and half of them twice at 1 GB/s: 6 ms; 8 steps and 75 ms between machines.
        self.assertAlmostEqual(two["step_ms"], 106)
        self.assertAlmostEqual(many["step_ms"], 183)
        self.assertAlmostEqual(many["efficiency"], 100 / 183)
        half = json.loads(run("predict", *words, "--reduce", "bf16").stdout)["points"][1]
        self.assertAlmostEqual(half["step_ms"], 104)

    def test_refusals_are_one_sentence(self):
        for words, part in ((["predict", "--gpus", "0"], "must be at least 1, found 0"),
                            (["predict", "--step-ms", "nan"], "must be a number above 0, found nan"),
                            (["predict", "--gpus", "two"], "must be at least 1, found two"),
                            (["measure", "--linnet", "/nowhere"], "/nowhere is missing; tools/linnet builds it")):
            outcome = run(*words)
            self.assertNotEqual(outcome.returncode, 0)
            self.assertIn(part, outcome.stderr)
            self.assertNotIn("Traceback", outcome.stderr)

    def test_measures_this_machine(self):
        doctor = subprocess.run([PROGRAM, "doctor"], capture_output=True, text=True, timeout=60).stdout
        if "several processes by Gloo" not in doctor:
            self.skipTest("this build has no Gloo")
        outcome = run("measure", "--tiny", "--rounds", "1", "--linnet", PROGRAM, "--json")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        points = json.loads(outcome.stdout)["points"]
        self.assertEqual([point["delay_ms"] for point in points], [0, 0, 20, 200])
        slow = points[-1]
        self.assertGreaterEqual(slow["together_s"], 0.2 * slow["buckets"])
        self.assertGreaterEqual(slow["predicted_s"], 0.2 * slow["buckets"])


if __name__ == "__main__":
    unittest.main()
