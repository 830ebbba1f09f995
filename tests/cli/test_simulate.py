"""What simulate foretells, and what profile measures for it."""
import json
import xml.dom.minidom

from program import TINY, ProgramTest, main

CLUSTER = {"levels": [{"name": "node", "devices": 2, "latency": 1e-6, "bandwidth": 1e9},
                      {"name": "cluster", "latency": 1e-5, "bandwidth": 1e8}]}


class Simulate(ProgramTest):
    def figures(self, *arguments):
        path = self.folder / "figures.json"
        self.piper("simulate", *TINY, "--json", path, *arguments)
        return json.loads(path.read_text())

    def test_figures_add_up(self):
        figures = self.figures("--strategy", "dp:2x1f1b:2", "--microbatches", "4",
                               "--cluster", self.write("cluster.json", CLUSTER))
        self.assertEqual(figures["devices"], 4)
        self.assertEqual(sum(each["count"] for each in figures["classes"]), 4)
        self.assertEqual(len(figures["classes"]), 2)
        for each in figures["classes"]:
            self.assertAlmostEqual(each["busy"] + each["exposed"] + each["bubble"],
                                   figures["seconds"])
            self.assertEqual(sum(each["at_peak"].values()), each["peak_bytes"])
        self.assertGreater(figures["compiler"]["seconds"], 0)
        passes = {each["pass"]: each for each in figures["compiler"]["passes"]}
        self.assertGreater(passes["emit_plans"]["bytes"], passes["assign_streams"]["bytes"])

    def test_every_device_says_the_same(self):
        arguments = ("--strategy", "dp:4", "--microbatches", "4",
                     "--cluster", self.write("cluster.json", CLUSTER))
        one, all_ = self.figures(*arguments), self.figures(*arguments, "--every-device")
        self.assertEqual(len(all_["classes"]), 4)
        self.assertAlmostEqual(one["seconds"], all_["seconds"], places=12)

    def test_ablations_cost_time(self):
        slow = self.write("slow.json", {"levels": [{"name": "link", "latency": 1e-4,
                                                    "bandwidth": 1e7}]})
        arguments = ("--strategy", "1f1b:2", "--microbatches", "4", "--cluster", slow)
        best = self.figures(*arguments)["seconds"]
        self.assertGreater(self.figures(*arguments, "--no-overlap")["seconds"], best)
        self.assertGreater(self.figures(*arguments, "--no-fusion")["seconds"], best)
        parallel = ("--strategy", "dp:4", "--cluster", slow)
        best = self.figures(*parallel)["seconds"]
        self.assertGreater(self.figures(*parallel, "--no-bucketing")["seconds"], best)
        self.assertGreater(self.figures(*parallel, "--collective", "ring")["seconds"], best)

    def test_pictures(self):
        svg, trace = self.folder / "job.svg", self.folder / "job.json"
        shown = self.piper("simulate", *TINY, "--strategy", "1f1b:2", "--microbatches", "4",
                           "--timeline", "--width", "80", "--svg", svg, "--trace", trace,
                           "--statistics").stdout
        self.assertIn("device 0 compute", shown)
        self.assertIn("exposed", shown)
        self.assertIn("optimizer", shown)
        self.assertIn("verify_plans", shown)
        self.assertEqual(xml.dom.minidom.parse(str(svg)).documentElement.tagName, "svg")
        self.assertTrue(json.loads(trace.read_text())["traceEvents"])

    def test_sixteen_thousand_devices(self):
        figures = self.figures("--batch", "16384", "--strategy", "dp:4096x1f1b:4",
                               "--microbatches", "16384", "--layers", "4")
        self.assertEqual(figures["devices"], 16384)
        self.assertEqual([each["count"] for each in figures["classes"]], [4096] * 4)

    def test_refused(self):
        job = ("simulate", *TINY, "--strategy", "single")
        self.refused(*job, "--costs", self.folder / "none.json", says="none.json")
        self.refused(*job, "--costs", self.write("a.json", '{"calls": {\n "attn9": {}}}'),
                     says=["a.json:2:2", "attn9"])
        self.refused(*job, "--cluster", self.write("b.json", '{"levels": [],\n "sped": 2}'),
                     says=["b.json:2:2", "did you mean \"speed\"?"])
        self.refused(*job, "--collectives", "gossip", says="gossip")
        self.refused(*job, "--svg", self.folder / "none" / "job.svg", says="cannot write")


class Profile(ProgramTest):
    def test_its_file_is_what_simulate_reads(self):
        costs = self.folder / "costs.json"
        shown = self.piper("profile", *TINY, "--strategy", "1f1b:2", "--microbatches", "2",
                           "--time", "50", "-o", costs).stdout
        self.assertIn("attn0", shown)
        written = json.loads(costs.read_text())
        self.assertEqual(len(written["calls"]), len(set(line.split()[0]
                                                        for line in shown.splitlines()[2:])))
        attention = written["calls"]["attn0"]
        self.assertGreater(attention["forward"]["fixed"] + attention["forward"]["per_row"], 0)
        simulated = self.piper("simulate", *TINY, "--strategy", "1f1b:2", "--microbatches", "2",
                               "--costs", costs).stdout
        self.assertIn("measured with 1, 2, 4 rows", simulated)

    def test_stages_are_balanced_by_it(self):
        costs = self.folder / "costs.json"
        job = ("--layers", "4", "--strategy", "1f1b:2", "--microbatches", "2")
        self.piper("profile", *TINY, *job, "--time", "20", "-o", costs)
        uneven = json.loads(costs.read_text())
        for name in ("attn0", "mlp0"): # as long as all others, so the first layer is half
            uneven["calls"][name]["forward"]["fixed"] = 1
            uneven["calls"][name]["backward"]["fixed"] = 2
        for name in ("attn1", "mlp1", "attn2"):
            uneven["calls"][name]["forward"]["fixed"] = 0.5
        costs.write_text(json.dumps(uneven))

        def seconds(*arguments):
            path = self.folder / "figures.json"
            self.piper("simulate", *TINY, *job, "--costs", costs, "--json", path, *arguments)
            return json.loads(path.read_text())["seconds"]
        self.assertLess(seconds("--balance", costs), seconds())
        plain = self.train(*job, "--iters", "2")["parameters_digest"]
        self.assertEqual(plain, self.train(*job, "--iters", "2", "--balance", costs)
                         ["parameters_digest"])
        self.refused("simulate", *TINY, *job, "--balance", self.folder / "none.json",
                     says=["cannot read", "--balance"])

    def test_peak_memory_is_foretold(self):
        job = ("--layers", "3", "--d-model", "64", "--heads", "2", "--seq", "64", "--batch", "8",
               "--microbatches", "2", "--strategy", "single")
        figures, report = (self.folder / name for name in ("f.json", "r.json"))
        self.piper("simulate", *job, "--json", figures)
        self.piper("train", *job, "--iters", "2", "--report", report)
        foretold = json.loads(figures.read_text())["classes"][0]["peak_bytes"]
        measured = json.loads(report.read_text())["devices"][0]["peak_bytes"]
        self.assertAlmostEqual(foretold, measured, delta=0.001 * measured)

    def test_links_between_processes(self):
        costs = self.folder / "costs.json"
        self.piper("profile", *TINY, "--strategy", "1f1b:2", "--microbatches", "2",
                   "--processes", "2", "--time", "50", "-o", costs)
        levels = json.loads(costs.read_text())["cluster"]["levels"]
        self.assertEqual([level["devices"] for level in levels], [1, 0])
        self.assertTrue(levels[0]["hands_over"])
        self.assertGreater(levels[1]["latency"], 0)
        self.assertGreater(levels[1]["bandwidth"], 1e6)

    def test_refused(self):
        self.refused("profile", *TINY, "--strategy", "single", says="--output")
        self.refused("profile", *TINY, "--strategy", "single", "-o", self.folder / "c.json",
                     "--rows", "99", says=["99 rows", "--rows"])


if __name__ == "__main__":
    main()
