#include "ir/strategy.h"
#include "ir/suggest.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;

namespace {

std::string error(const std::string& json) {
  const auto result = Strategy::parse(json, "s.json");
  REQUIRE(!result.ok());
  CHECK(result.error().kind == ErrorKind::User);
  return result.error().to_string();
}

/// The error of a directive that stands alone, without the place that all of them share.
std::string directive_error(const std::string& op, const std::string& rest) {
  const std::string text = error(fmt::format("[{{\"op\": \"{}\", {}}}]", op, rest));
  const std::string where = fmt::format("directive 0 ({}), s.json:1: ", op);
  REQUIRE(text.starts_with(where));
  return text.substr(where.size());
}

const char* kEveryDirective = R"([
  {"op": "split", "filter": {}, "dim_name": "MB", "num_microbatches": 4},
  {"op": "place", "filter": {"layer": 0}, "devices": [0, 1], "stream": "side"},
  {"op": "replicate", "filter": {"layer": [1, 2]}, "devices": [0, 1, 2, 3], "shard_optimizer": true, "shard_within": 2, "bucket_mb": 2.5, "reduce_stream": "r", "gather_stream": "g"},
  {"op": "order", "filters": [[{"MB": 0}, {"MB": "*", "PASS": "F"}], [{"PASS": "B"}]]},
  {"op": "overlap", "a": {"PASS": "F"}, "b": {"PASS": "B", "layer": null}},
  {"op": "fuse", "filter": {"PASS": "REDUCE", "call": ["a", "b"]}},
  {"op": "fuse", "filter": {"layer": 2}, "update": true},
  {"op": "mirror", "filter": {"layer": 2}, "copies": 3},
  {"op": "tag", "filter": {"call": "head"}, "name": "stage", "index": 3},
  {"op": "schedule", "name": "1f1b:4", "microbatches": 8}
]
)";

} // namespace

TEST_CASE("the builder and the JSON file are two spellings of one strategy") {
  Strategy built;
  Filter no_layer{{"PASS", "B"}};
  Filter::Term absent("layer", 0);
  absent.match = {TagMatch::Kind::Absent, {}};
  no_layer.add(absent);
  built.split({}, 4)
      .place({{"layer", 0}}, {0, 1}, "side")
      .replicate({.filter = {{"layer", std::vector<int64_t>{1, 2}}},
                  .devices = {0, 1, 2, 3},
                  .shard_optimizer = true,
                  .shard_within = 2,
                  .bucket_mb = 2.5,
                  .reduce_stream = "r",
                  .gather_stream = "g"})
      .order({{{{"MB", 0}}, {{"PASS", "F"}, {"MB", "*"}}}, {{{"PASS", "B"}}}})
      .overlap({{"PASS", "F"}}, no_layer)
      .fuse({{"PASS", "REDUCE"}, {"call", std::vector<std::string>{"a", "b"}}})
      .fuse({{"layer", 2}}, true)
      .mirror({{"layer", 2}}, 3)
      .tag({{"call", "head"}}, "stage", 3)
      .schedule("1f1b:4", 8);
  const auto parsed = Strategy::parse(kEveryDirective);
  REQUIRE(parsed.ok());
  CHECK(*parsed == built);
  CHECK(*Strategy::parse(built.to_json()) == built);
  CHECK(Strategy::parse(kEveryDirective)->to_json() == built.to_json());
}

TEST_CASE("a strategy prints a directive a line") {
  Strategy s;
  s.split({}, 4).place({{"MB", "*"}, {"layer", "3"}}, {1});
  CHECK(s.to_json() == "[\n"
                       "  {\"op\": \"split\", \"filter\": {}, \"dim_name\": \"MB\", "
                       "\"num_microbatches\": 4},\n"
                       "  {\"op\": \"place\", \"filter\": {\"MB\": \"*\", \"layer\": 3}, "
                       "\"devices\": [1]}\n"
                       "]\n");
  CHECK(Strategy().to_json() == "[]\n");
}

TEST_CASE("files of the original Piper are accepted") {
  const auto s = Strategy::parse(R"([
    {"op": "place", "filter": {"stage": "0"}, "device": 0, "stream": null},
    {"op": "replicate", "filter": {}, "devices": [0, 1], "bucket_size": 50,
     "shard_grads": false, "shard_params": false},
    {"op": "split", "filter": {}, "dim_name": "MB", "num_microbatches": 2},
    {"op": "order", "filters": [{"MB": 0}, [{"MB": 1}]]}])");
  REQUIRE(s.ok());
  Strategy wanted;
  wanted.place({{"stage", 0}}, {0})
      .replicate({.devices = {0, 1}, .bucket_mb = 50})
      .split({}, 2)
      .order({{{{"MB", 0}}}, {{{"MB", 1}}}});
  CHECK(*s == wanted);
}

TEST_CASE("a strategy may have a name, and its directives know where they stand") {
  const auto s = Strategy::parse("{\"name\": \"mine\",\n \"directives\": [\n"
                                 "  {\"op\": \"fuse\", \"filter\": {\"a\": 1}},\n\n"
                                 "  {\n\"op\": \"fuse\", \"filter\": {}}]}",
                                 "s.json");
  REQUIRE(s.ok());
  CHECK(s->name == "mine");
  CHECK(s->describe(0) == "directive 0 (fuse), s.json:3");
  CHECK(s->describe(1) == "directive 1 (fuse), s.json:5");
  CHECK(s->describe(2) == "directive 2");
  CHECK(Strategy::parse("\n[{\"op\": \"fuse\", \"filter\": {}}]")->describe(0) ==
        "directive 0 (fuse), line 2");
  CHECK(Strategy().fuse({}).describe(0) == "directive 0 (fuse)");
}

TEST_CASE("malformed JSON names line and column, and what was expected") {
  CHECK(error("[\n  {\"op\": }\n]").starts_with("s.json:2:10: malformed JSON: "));
  CHECK(error("[\n  {\"op\": }\n]").find("unexpected '}'") != std::string::npos);
  CHECK(error("[{\"op\" 1}]").find("expected ':'") != std::string::npos);
  CHECK(error("").find("unexpected end of input") != std::string::npos);
  CHECK(error("[1e999]") == "s.json:1: malformed JSON: number overflow parsing '1e999'");
  CHECK(Strategy::parse("[").error().where == "line 1, column 2");
  CHECK(error("[\n{\"op\": \"fuse\",\n\"op\": \"fuse\"}]") ==
        "s.json:3: the key \"op\" stands twice in one object");
}

TEST_CASE("what is no list of directives is refused") {
  CHECK(error("3") == "s.json: a strategy must be a list of directives, found 3\n"
                      "  [{\"op\": \"place\", \"filter\": {}, \"device\": 0}]");
  CHECK(error("[3]") == "s.json: directive 0 must be an object like {\"op\": …}, found 3");
  CHECK(error("{\"name\": \"x\"}") == "s.json: the key \"directives\" is missing");
  CHECK(error("{\"directive\": []}").starts_with("s.json: unknown key \"directive\""));
  CHECK(error("[{}]") == "directive 0 (?), s.json:1: the key \"op\" is missing");
  CHECK(error("[{\"op\": 3}]") == "directive 0 (?), s.json:1: \"op\" must be a string, found 3");
}

TEST_CASE("an unknown directive lists the known ones and the nearest") {
  CHECK(directive_error("plcae", "\"filter\": {}") ==
        "unknown directive \"plcae\"\n"
        "  did you mean \"place\"? known directives: \"split\", \"split_backward\", \"place\", "
        "\"replicate\", \"order\", \"overlap\", \"fuse\", \"recompute\", \"prefetch\", \"tag\", "
        "\"schedule\", \"shard\", \"shard_tensor\", \"offload\", \"mirror\"");
  CHECK(directive_error("quantize", "\"filter\": {}").find("did you mean") == std::string::npos);
}

TEST_CASE("wrong keys and types are named with what was wanted") {
  CHECK(directive_error("fuse", "\"filtre\": {}") ==
        "unknown key \"filtre\"\n  did you mean \"filter\"? known keys: \"op\", \"filter\", "
        "\"update\"");
  CHECK(directive_error("fuse", "\"filter\": 3") ==
        "\"filter\" must be a filter like {\"layer\": 2}, found 3");
  CHECK(directive_error("fuse", "\"filter\": {\"layer\": 1.5}") ==
        "\"layer\" must be a number, a word, \"*\", null or a list of numbers and words, found "
        "1.5");
  CHECK(directive_error("fuse", "\"filter\": {\"layer\": []}") ==
        "the list of \"layer\" is empty\n  \"*\" stands for any index");
  CHECK(directive_error("fuse", "\"filter\": {\"PASS\": \"X\"}") ==
        "unknown PASS \"X\"\n  known: \"F\", \"B\", \"BI\", \"BW\", \"REDUCE\"");
  CHECK(directive_error("place", "\"filter\": {}") == "the key \"devices\" is missing");
  CHECK(directive_error("place", "\"filter\": {}, \"device\": -1") ==
        "\"device\" must be a device or a list of devices (0, 1, …), found -1");
  CHECK(directive_error("place", "\"filter\": {}, \"devices\": []") ==
        "\"devices\" must be a device or a list of devices, found []");
  CHECK(directive_error("place", "\"filter\": {}, \"device\": 0, \"stream\": 1") ==
        "\"stream\" must be a string, found 1");
  CHECK(directive_error("split", "\"filter\": {}, \"num_microbatches\": 0") ==
        "\"num_microbatches\" must be a number of 1 or more, found 0");
  CHECK(directive_error("split", "\"filter\": {}") == "the key \"num_microbatches\" is missing");
  CHECK(directive_error("replicate", "\"filter\": {}, \"device\": 0, \"bucket_size\": \"big\"") ==
        "\"bucket_mb\" must be a size in MB above 0, found \"big\"");
  CHECK(directive_error("replicate", "\"filter\": {}, \"device\": 0, \"shard_grads\": 1") ==
        "\"shard_grads\" must be true or false, found 1");
  CHECK(directive_error("replicate", "\"filter\": {}, \"device\": 0, \"shard_within\": 0") ==
        "\"shard_within\" must be a number of replicas, 1 or more, found 0");
  CHECK(directive_error("order", "\"filters\": [[{}]]") ==
        "\"filters\" must be a list of two groups of filters or more, found [[{}]]");
  CHECK(directive_error("order", "\"filters\": [[{}], []]") ==
        "a group of \"filters\" is empty\n  {} is the filter that matches everything");
  CHECK(directive_error("schedule", "\"microbatches\": 2") == "the key \"name\" is missing");
  CHECK(directive_error("mirror", "\"filter\": {}, \"copies\": 0") ==
        "\"copies\" must be a number of 1 or more, found 0");
  CHECK(directive_error("tag", "\"filter\": {}, \"name\": \"s\", \"index\": \"one\"") ==
        "\"index\" must be a number, found \"one\"");
}

TEST_CASE("a strategy loads from a file") {
  const std::string path = Catch::getResultCapture().getCurrentTestName() + ".json";
  std::ofstream(path) << kEveryDirective;
  const auto loaded = Strategy::load(path);
  std::remove(path.c_str());
  REQUIRE(loaded.ok());
  CHECK(loaded->name == path);
  CHECK(*loaded == *Strategy::parse(kEveryDirective));
  CHECK(Strategy::load("no/such.json").error().to_string() ==
        "no/such.json: cannot read the strategy: No such file or directory\n"
        "  name a JSON file of directives");
  CHECK(Strategy::load(".").error().message == "cannot read the strategy: Is a directory");
}

TEST_CASE("the nearest name is suggested, if one is near") {
  CHECK(closest("oder", {"order", "place"}) == "order");
  CHECK(closest("xyzzy", {"order", "place"}).empty());
  CHECK(closest("a", {"b"}).empty());
}
