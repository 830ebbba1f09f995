"""usage: check_layers_test.py SCRIPT. Small trees with one breach each must be refused."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = sys.argv.pop()


class CheckLayers(unittest.TestCase):
    def check(self, files):
        with tempfile.TemporaryDirectory() as top:
            for name, text in files.items():
                path = pathlib.Path(top, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            run = subprocess.run([sys.executable, SCRIPT, top], capture_output=True, text=True)
        return run.returncode, run.stdout

    def breach(self, says, files):
        code, output = self.check(files)
        self.assertEqual(code, 1, output)
        self.assertIn(says, output)

    def test_good_tree(self):
        code, _ = self.check({"ir/a.h": "#include <vector>\n",
                              "compiler/passes/b.cpp": '#include "ir/a.h"\n',
                              "actors/c.cpp": '#include <caf/all.hpp>\n#include "ir/a.h"\n'})
        self.assertEqual(code, 0)

    def test_breaches(self):
        self.breach("ir/a.cpp:2: ir/ may not include compiler/",
                    {"ir/a.cpp": '\n#include "compiler/b.h"\n', "compiler/b.h": ""})
        self.breach("compiler/ may not use torch",
                    {"compiler/passes/a.cpp": "#include <torch/torch.h>\n"})
        self.breach("actors/executor/ may not use caf",
                    {"actors/executor/a.cpp": "#include <caf/all.hpp>\n"})
        self.breach("tools/ may not use caf", {"tools/piper/a.cpp": "# include <caf/all.hpp>\n"})
        self.breach("transport/loopback/ may not include transport/ucx/",
                    {"transport/loopback/a.cpp": '#include "transport/ucx/b.h"\n',
                     "transport/ucx/b.h": ""})
        self.breach("the runtime names a strategy (GPipe)", {"actors/a.cpp": "// as in GPipe\n"})

    def test_an_empty_tree_is_no_success(self):
        self.assertEqual(self.check({})[0], 1)


unittest.main()
