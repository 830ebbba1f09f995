"""Flags, configurations and strategies that compile, and those that are refused."""
from program import TINY, ProgramTest, main


class Flags(ProgramTest):
    def test_help_and_version(self):
        self.assertIn("compile", self.piper("--help").stdout)
        self.assertIn("--strategy", self.piper("train", "--help").stdout)
        self.assertRegex(self.piper("--version").stdout, r"^\d+\.\d+\.\d+\n$")

    def test_refused(self):
        self.refused(says="Subcommands:")
        self.refused("fly", says="fly")
        self.refused("train", "--wings", "2", says="--wings")
        self.refused("train", "--iters", "many", says="--iters")
        self.refused("compile", "--emit", "smoke", says="--emit")


class Config(ProgramTest):
    def test_keys_are_flags_and_flags_win(self):
        config = self.write("job.json", {"layers": 3, "d_model": 16, "heads": 2, "seq": 8,
                                         "batch": 4, "strategy": "single", "emit": "plan"})
        plan = self.piper("compile", "--config", config).stdout
        self.assertIn("blocks.2.", plan)
        fewer = self.piper("compile", "--config", config, "--layers", "1").stdout
        self.assertNotIn("blocks.1.", fewer)
        graph = self.piper("compile", "--config", config, "--emit", "graph").stdout
        self.assertNotEqual(plan, graph)

    def test_refused(self):
        self.refused("compile", "--config", self.folder / "none.json", says="none.json")
        self.refused("compile", "--config", self.write("a.json", '{"layers": 2,\n "heads" 3}'),
                     says=["a.json", "line 2", "column 10"])
        self.refused("compile", "--config", self.write("b.json", "[1]"), says="no JSON object")
        self.refused("compile", "--strategy", "single", "--config",
                     self.write("c.json", {"wings": 2}), says=["unknown key 'wings'", "d_model"])
        self.refused("compile", "--strategy", "single", "--config",
                     self.write("d.json", {"devices": "few"}), says=["devices", "few"])


class Compile(ProgramTest):
    def compile(self, *arguments):
        return self.piper("compile", *TINY, *arguments).stdout

    def test_every_form(self):
        forms = {form: self.compile("--strategy", "dp:2", "--emit", form)
                 for form in ("graph", "plan", "dot")}
        self.assertEqual(len(set(forms.values())), 3)
        self.assertTrue(forms["dot"].startswith("digraph"))

    def test_is_the_same_each_time(self):
        arguments = ("--strategy", "dp:2x1f1b:2", "--microbatches", "4")
        self.assertEqual(self.compile(*arguments), self.compile(*arguments))

    def test_stops_after_a_pass(self):
        # Before the backward is added there is none; the message lists the passes.
        run = self.piper("compile", *TINY, "--strategy", "single", "--emit", "graph", "--after",
                         "fly", code=2)
        self.assertIn('there is no pass "fly"', run.stderr)
        first = run.stderr.split("the passes are ")[1].split(",")[0]
        early = self.compile("--strategy", "single", "--emit", "graph", "--after", first)
        self.assertLess(len(early), len(self.compile("--strategy", "single", "--emit", "graph")))
        self.refused("compile", *TINY, "--strategy", "single", "--emit", "plan", "--after", first,
                     says="only after the last pass")

    def test_file_equals_its_builder(self):
        strategy = self.write("s.json", '[{"op": "schedule", "name": "1f1b:2", '
                                        '"microbatches": 2}]')
        def plans(*arguments):  # without where each directive was written
            return [line for line in self.compile(*arguments).splitlines()
                    if not line.startswith("directive ")]
        self.assertEqual(plans("--strategy", strategy),
                         plans("--strategy", "1f1b:2", "--microbatches", "2"))

    def refuses(self, strategy, says, *arguments):
        path = self.write("s.json", strategy)
        self.refused("compile", *TINY, "--strategy", path, *arguments, says=says)

    def test_refused_strategies(self):
        self.refused("compile", *TINY, says="no strategy is given")
        self.refused("compile", *TINY, "--strategy", "none.json", says="there is no file none.json")
        self.refused("compile", *TINY, "--strategy", "dualflight:3", says="dualflight")
        self.refuses('[{"op": "place",\n  "filter" {}}]', "s.json:2:12: malformed JSON")
        self.refuses([{"op": "levitate", "filter": {}}], "levitate")
        self.refuses([{"op": "place", "filter": {"wing": 1}, "devices": [0]}], "wing")
        self.refuses([{"op": "place", "filter": {}, "devices": [0]},
                      {"op": "place", "filter": {"layer": 9}, "devices": [1]}], "layer")
        self.refuses([{"op": "place", "filter": {}, "devices": [5]}], "5", "--devices", "2")
        self.refuses([{"op": "split", "filter": {}, "dim_name": "MB", "num_microbatches": 3},
                      {"op": "place", "filter": {}, "devices": [0]}], "3")

    def test_refused_models(self):
        self.refused("compile", "--model", "gnu", "--strategy", "single", says=["gnu", "gpt", "mlp"])
        self.refused("compile", *TINY, "--strategy", "single", "--data", self.folder / "none.txt",
                     says="none.txt")
        self.refused("compile", *TINY, "--strategy", "single", "--heads", "3", says="heads")


if __name__ == "__main__":
    main()
