#include "ir/verify.h"
#include "tests/ir/plans.h"

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

Result<void> verified(const std::string& text, int layers) {
  const auto set = PlanSet::parse(text);
  INFO((set.ok() ? "" : set.error().to_string()));
  REQUIRE(set.ok());
  return verify(*set, *chain_spec(layers));
}

std::string error_of(const std::string& text, int layers) {
  const auto result = verified(text, layers);
  REQUIRE(!result.ok());
  CHECK(result.error().kind == ErrorKind::Internal);
  return fmt::format("{}: {}", result.error().where, result.error().message);
}

/// The error after one change to the pipeline's plans.
std::string pipeline(const std::string& from, const std::string& to) {
  return error_of(replaced(pipeline_plans(), from, to), 2);
}
std::string replicated(const std::string& from, const std::string& to) {
  return error_of(replaced(replicated_plans(), from, to), 1);
}

/// The pipeline's plans with a line moved behind another one.
std::string moved(std::string text, const std::string& line, const std::string& behind) {
  text = replaced(text, line + "\n", "");
  return replaced(text, behind + "\n", behind + "\n" + line + "\n");
}

} // namespace

TEST_CASE("plan sets that keep the rules are accepted") {
  for (const auto& [text, layers] :
       {std::pair(pipeline_plans(), 2), std::pair(replicated_plans(), 1),
        std::pair(migration_plans(), 1)}) {
    const auto result = verified(text, layers);
    INFO((result.ok() ? "" : result.error().to_string()));
    CHECK(result.ok());
  }
}

TEST_CASE("the tables of a plan set agree with each other and with the model") {
  CHECK(error_of(pipeline_plans(), 3).find("the plans are for the model ") != std::string::npos);
  const std::string set = "train plans of epoch 3: ";
  CHECK(pipeline("group g1 devices 1\n", "group g1\n") == set + "group g1 has no devices");
  CHECK(pipeline("group g2 devices 0, 1", "group g2 devices 0, 1, 1") ==
        set + "group g2 has device 1 twice");
  CHECK(pipeline("groups g0, g2", "groups g0, g9") ==
        set + "role g0 is a member of g9, which does not exist");
  CHECK(pipeline("groups g0, g2", "groups g0") ==
        set + "device 0 is not in exactly the groups of its role g0");
  CHECK(pipeline("world g2", "world g0") ==
        set + "the world is not exactly the devices that have a plan");
  CHECK(pipeline("world g2", "world -") == set + "there is no world");
  CHECK(pipeline("param p1", "param p0") == set + "parameter l0.w is in two buckets");
  CHECK(pipeline("  param p1 at 0\n", "") == set + "parameter l1.w is in no bucket");
  CHECK(pipeline("param p1", "param p7") ==
        set + "bucket layer=1 holds parameter 7, which does not exist");
}

TEST_CASE("what an instruction names must exist") {
  CHECK(pipeline("(s0) -> (s1, s2) free s0", "(s0) -> (s1, s99) free s0") ==
        "role g0, F l0 @0, directive 0 (place), s.json:1: slot s99 of 8");
  CHECK(pipeline("free s1, s6 wait e0", "free s1, s6 wait e9").ends_with(": event e9 of 2"));
  CHECK(pipeline("stream recv record e1\n  B [c0] @0", "stream recv record e9\n  B [c0] @0")
            .ends_with(": event e9 of 2"));
  CHECK(pipeline("wait e0 by 0", "wait e0 by 5").ends_with(": directive 5 of 1"));
  CHECK(pipeline("F [c0] @0", "F [c9] @0").ends_with(": call c9 of 3"));
  CHECK(pipeline("input @1 as g0", "input @2 as g0").ends_with(": microbatch 2 of 2"));
  CHECK(pipeline("update buckets b0", "update buckets b7").ends_with(": bucket b7 of 2"));
  CHECK(pipeline("update buckets b0", "update buckets b1")
            .ends_with(": the role does not hold bucket layer=1"));
  CHECK(pipeline("input @1 as g0", "input @1 as g1").ends_with(": the role is no member of g1"));
  CHECK(pipeline("send edge 0 @0", "send edge 9 @0")
            .ends_with(": its edge has no name in the plan set"));
  CHECK(pipeline("buckets b0 as g2 over g2", "buckets b0 as g2 over g1")
            .ends_with(": the role is no member of the group of the collective"));
  CHECK(pipeline("input @1 as g0 -> (s3)", "input @1 as g0 -> (s3) stream ?7")
            .ends_with(": stream 7 of 2"));
}

TEST_CASE("an evaluation has no backward, and migrations stand apart") {
  CHECK(pipeline("plans train", "plans eval")
            .ends_with(": an evaluation neither goes backward nor updates"));
  CHECK(pipeline("plans train", "plans migrate") ==
        "role g0, input x @0: it has no place in a plan of kind migrate");
}

TEST_CASE("a slot is written before it is read, freed once, and not live at the end") {
  CHECK(pipeline("  input @1 as g0 -> (s3)\n", "") ==
        "role g0, F l0 @1, directive 0 (place), s.json:1: slot s3 (x @1 on g0) is read before it "
        "is written");
  CHECK(pipeline("input @1 as g0 -> (s3)", "input @1 as g0 -> (s0)") ==
        "role g0, input x @1: slot s0 (x @0 on g0) is written twice");
  CHECK(pipeline("free s3 by 0", "free s3, s0 by 0")
            .ends_with("slot s0 (x @0 on g0) is freed "
                       "twice"));
  CHECK(pipeline(" free s3 by 0", " by 0") ==
        "role g0, input x @1: slot s3 (x @1 on g0) is still live at the end");
  CHECK(pipeline("free s1, s6 wait e0", "free s1, s6") ==
        "role g0, B l0 @0, directive 0 (place), s.json:1: slot s6 (d.l0 @0 on g0) is read on "
        "another stream without waiting for recv d.l0 @0 from g1");
  CHECK(pipeline("-> (s1, s2) free s0", "-> (s1, s2) free s0, s2")
            .ends_with(": slot s2 (l0 @0 on g0) is freed twice"));
  CHECK(error_of(
            replaced(replaced(pipeline_plans(), "-> (s1, s2) free s0", "-> (s1, s2) free s0, s2"),
                     "(s2) free s2\n  input @1", "(s2)\n  input @1"),
            2)
            .ends_with("slot s2 (l0 @0 on g0) may be read after F l0 @0 has freed it"));
}

TEST_CASE("events are recorded once, and before they are waited for") {
  CHECK(pipeline("stream recv record e1\n  B [c0] @0", "stream recv record e0\n  B [c0] @0")
            .ends_with(": event e0 is recorded twice"));
  CHECK(pipeline("free s3 by 0", "free s3 wait e0 by 0") ==
        "role g0, F l0 @1, directive 0 (place), s.json:1: it waits for event e0, which nothing "
        "before it records");
}

TEST_CASE("a slot holds what its name says") {
  CHECK(pipeline("input @1 as g0 -> (s3)", "input @0 as g0 -> (s3)") ==
        "role g0, input x @0: slot s3 (x @1 on g0) is of another microbatch");
  CHECK(pipeline("input @0 as g0 -> (s0)", "input @0 as g2 -> (s0)") ==
        "role g0, input x @0: slot s0 (x @0 on g0) is of another place");
  CHECK(pipeline("slot s0 v0 @0 on g0 is f32[B,4]", "slot s0 v0 @0 on g0 is f32[B,5]") ==
        "role g0: slot s0 (x @0 on g0) is of type f32[B,5], the model's is f32[B,4]");
  CHECK(pipeline("slot s2 v3 @0 on g1 is f32[B,4]", "slot s2 v1 @0 on g1 is f32[B,4]")
            .ends_with(": slot s2 (l0 @0 on g1) is not an input of the model"));
  CHECK(pipeline("F [c1 | c2] @0 as g1 (s0, s2)", "F [c1 | c2] @0 as g1 (s0, s0)") ==
        "role g1, F l1..loss @0: slot s0 (l0 @0 on g1) is not what its calls read");
  CHECK(pipeline("F [c1 | c2] @0 as g1 (s0, s2) -> (s3, s4, s5) free s0, s2",
                 "F [c1 | c2] @0 as g1 (s2) -> (s3, s4, s5) free s0, s2") ==
        "role g1, F l1..loss @0: it does not read l0, which call l1 needs");
  CHECK(pipeline("-> (s3, s4, s5)", "-> (s4, s3, s5)")
            .ends_with(": slot s4 (saved.loss @0 on g1) is not what its chunk keeps"));
  CHECK(pipeline("slot s5 v4 @0 on g1 is f32[]", "slot s5 v1 @0 on g1 is f32[B,4]")
            .ends_with(": slot s5 (l0 @0 on g1) is not what its calls make"));
  CHECK(pipeline("slot s7 d.v1 @0 on g1", "slot s7 d.v3 @0 on g1") ==
        "role g1, B l1..loss @0: slot s7 (d.y @0 on g1) is not the gradient of what its calls "
        "read of others");
  CHECK(pipeline("(s2) free s2\n  input @1", "(s1) free s2\n  input @1") ==
        "role g0, send saved.l0 @0 to g1: slot s1 (saved.l0 @0 on g0) is not a tensor: it cannot "
        "travel");
}

TEST_CASE("forward and backward agree on their chunks") {
  CHECK(pipeline("B [c1 | c2] @0 as g1 (s3, s4, s6)", "B [c1 c2] @0 as g1 (s3, s6)") ==
        "role g1, B l1..loss @0: its chunks differ from those of the forward of its microbatch");
  CHECK(pipeline("(s3, s4, s6) -> (s7)", "(s4, s3, s6) -> (s7)") ==
        "role g1, B l1..loss @0: it does not begin with what the forward of its microbatch saved");
  CHECK(pipeline("F [c0] @1", "F [] @1").ends_with(": it has no chunks"));
  CHECK(pipeline("B [c1 | c2] @0", "B [c2 | c1] @0")
            .ends_with(": the calls of its chunks are not in forward order"));
  CHECK(pipeline("loss @0 as g1", "loss [c2] @0 as g1")
            .ends_with(": only what runs calls has chunks"));
}

TEST_CASE("every microbatch of every call goes forward and backward once, in one place") {
  CHECK(pipeline("  F [c0] @1 as g0 (s3) -> (s4, s5) free s3 by 0\n",
                 "  F [c0] @1 as g0 (s3) -> (s4, s5) free s3 by 0\n"
                 "  F [c0] @1 as g0 (s3) -> (-) by 0\n")
            .ends_with(": slot s3 (x @1 on g0) may be read after F l0 @1 has freed it"));
  CHECK(pipeline("  B [c0] @1 as g0 (s4, s7) free s4, s7 wait e1 by 0\n",
                 "  B [c0] @1 as g0 (s4, s7) wait e1 by 0\n"
                 "  B [c0] @1 as g0 (s4, s7) free s4, s7 by 0\n") ==
        "role g0, B l0 @1, directive 0 (place), s.json:1: call l0 goes backward twice for one "
        "microbatch");
  CHECK(pipeline("  B [c0] @1 as g0 (s4, s7) free s4, s7 wait e1 by 0\n",
                 "  add @1 as g0 (s4, s7) -> (s7) free s4, s7 wait e1 by 0\n")
            .ends_with(": slot s7 (d.l0 @1 on g0) is written twice"));
  CHECK(pipeline("  B [c0] @0 as g0 (s1, s6) free s1, s6 wait e0 by 0\n"
                 "  B [c0] @1 as g0 (s4, s7) free s4, s7 wait e1 by 0\n",
                 "  B [c0] @1 as g0 (s4, s7) free s1, s4, s6, s7 wait e1 by 0\n") ==
        "role g0: call l0 does not go backward for microbatch 0");
  CHECK(pipeline("  loss @0 as g1 (s5) free s5\n  seed @0 as g1 -> (s6) scale 0.5\n",
                 "  seed @0 as g1 -> (s6) scale 0.5 free s5\n") ==
        "role g1: the loss of microbatch 0 is not handed over");
  CHECK(pipeline("  loss @0 as g1 (s5) free s5\n",
                 "  loss @0 as g1 (s5)\n  loss @0 as g1 (s5) free s5\n")
            .ends_with(": the loss of its microbatch is handed over twice"));
  CHECK(replicated("group g0 devices 0, 1 replicated", "group g0 devices 0, 1") ==
        "role g0, F l0..loss @0: the devices of g0 would all do the same");
}

TEST_CASE("the gradient of every value is complete and scaled once") {
  CHECK(pipeline("seed @1 as g1 -> (s12) scale 0.5", "seed @1 as g1 -> (s12) scale 0.25") ==
        "role g1, seed d.loss @1: its scale is 0.25, but 2 microbatches on 1 replicas make it "
        "0.5");
  CHECK(replicated("scale 0.5", "scale 1")
            .ends_with(": its scale is 1, but 1 microbatches on 2 replicas make it 0.5"));
  CHECK(pipeline("B [c1 | c2] @0 as g1 (s3, s4, s6) -> (s7) free s3, s4, s6",
                 "B [c1 | c2] @0 as g1 (s3, s4) -> (s7) free s3, s4, s6") ==
        "role g1, B l1..loss @0: it reads 0 seeds, one is right");
  CHECK(pipeline("(s1, s6) free s1, s6 wait e0", "(s1) free s1, s6 wait e0") ==
        "role g0, B l0 @0, directive 0 (place), s.json:1: its gradient of l0 is the sum of no "
        "parts, not of the parts of l1");
  CHECK(pipeline("(s1, s6) free s1, s6 wait e0", "(s1, s6, s6) free s1, s6 wait e0")
            .ends_with(": its gradient of l0 is the sum of the parts of l1 l1, not of the parts "
                       "of l1"));
}

TEST_CASE("gradients are summed, committed and applied once, in that order") {
  CHECK(pipeline("  update buckets b0 as g0 over g0\n", "") ==
        "role g0: bucket layer=0 is not updated");
  CHECK(pipeline("  commit edge 2 buckets b0 as g2 over g2\n", "") ==
        "role g0: the plan has no commit");
  CHECK(pipeline("  update buckets b1 as g1 over g1\n",
                 "  update buckets b1 as g1 over g1\n  update buckets b1 as g1 over g1\n")
            .ends_with(": bucket layer=1 has this done twice"));
  CHECK(error_of(moved(pipeline_plans(), "  update buckets b0 as g0 over g0",
                       "  B [c0] @1 as g0 (s4, s7) free s4, s7 wait e1 by 0"),
                 2) == "role g0, update layer=0: it may run before the commit");
  CHECK(error_of(moved(pipeline_plans(), "  commit edge 2 buckets b0 as g2 over g2",
                       "  B [c0] @0 as g0 (s1, s6) free s1, s6 wait e0 by 0"),
                 2)
            .ends_with(": commit does not wait for it, though it adds to bucket layer=0"));

  CHECK(replicated("free s2, s4 record e0\n  reduce-scatter edge 0 buckets b0 as g0 over g0 stream "
                   "reduce wait e0 record e1\n  commit edge 1 buckets b0 as g0 over g0 wait e1",
                   "free s2, s4\n  commit edge 1 buckets b0 as g0 over g0") ==
        "role g0: no reduce-scatter sums the gradients of bucket layer=0");
  CHECK(replicated("over g0 wait e1", "over g0") ==
        "role g0, reduce-scatter layer=0: the commit does not wait for it");
  CHECK(replicated("stream reduce wait e0", "stream reduce") ==
        "role g0, B l0..loss @0: reduce-scatter layer=0 does not wait for it, though it adds to "
        "bucket layer=0");
  CHECK(replicated("  reduce-scatter", "  all-reduce") ==
        "role g0: no reduce-scatter sums the gradients of bucket layer=0");
  CHECK(replicated("  all-gather edge 2 buckets b0 as g0 over g0\n", "") ==
        "role g0: bucket layer=0 is not gathered after its update");
  CHECK(replicated("  all-gather edge 2 buckets b0", "  all-gather edge 2 buckets b0, b0")
            .ends_with(": it has 2 buckets, one is right"));
}

TEST_CASE("two streams don't add to one gradient at a time") {
  std::string text = pipeline_plans();
  text = replaced(text, "events 2\n  slot s0 v0", "events 4\n  slot s0 v0");
  text = replaced(text, "(s1, s2) free s0", "(s1, s2) free s0 record e2");
  text = replaced(text, "free s1, s6 wait e0", "free s1, s6 stream recv wait e0, e2 record e3");
  text = replaced(text, "commit edge 2 buckets b0 as g2 over g2",
                  "commit edge 2 buckets b0 as g2 over g2 wait e3");
  CHECK(error_of(text, 2) ==
        "role g0, B l0 @1, directive 0 (place), s.json:1: it may add to the gradient of l0.w at "
        "the same time as B l0 @0 on stream recv");
}

TEST_CASE("what is done to a bucket spans its holders, and the commit counts all") {
  CHECK(pipeline("update buckets b0 as g0 over g0", "update buckets b0 as g0 over g2") ==
        "role g0, update layer=0: it spans g2, but its bucket is on g0");
  CHECK(pipeline("commit edge 2 buckets b0 as", "commit edge 2 as") ==
        "role g0, commit: it does not count bucket layer=0");
  CHECK(pipeline("commit edge 2 buckets b0 as", "commit edge 2 buckets b0, b0 as") ==
        "role g0, commit: it counts bucket layer=0 twice");
  CHECK(pipeline("commit edge 2 buckets b0 as g2 over g2", "commit edge 2 buckets b0 as g0 over g0")
            .ends_with(": it spans g0, but the world is on g2"));
  CHECK(pipeline("update buckets b0 as g0 over g0", "update @0 buckets b0 as g0 over g0")
            .ends_with(": it happens once per iteration, not in a microbatch"));
  CHECK(pipeline("numel 16\n  param p1", "numel 24\n  param p1") ==
        "train plans of epoch 3: bucket layer=1 has 24 elements: its parameters need 16, padded "
        "to a multiple of 16");
}

TEST_CASE("a migration fills every array that it moves, once") {
  auto migration = [](const std::string& from, const std::string& to) {
    return error_of(replaced(migration_plans(), from, to), 1);
  };
  const std::string copy =
      "  copy-state source epoch 3 b0 param begin 0 count 16 target epoch 4 b0 "
      "param begin 0 count 16\n";
  CHECK(migration(copy, "") == "migrate plans of epoch 4: nothing fills element 0 of param of "
                               "bucket layer=0 on device 0");
  CHECK(migration(copy, "  copy-state source epoch 3 b0 param begin 0 count 16 target epoch 4 b0 "
                        "param begin 0 count 8\n") ==
        "device 0, role device 0, copy-state param of bucket 0 [0, 16): it moves a range to "
        "one of another kind or size");
  CHECK(migration(copy, copy + copy)
            .ends_with(": copy-state param of bucket 0 [0, 16) writes elements of it too"));
  CHECK(migration(copy, "  copy-state source epoch 3 b0 param begin 0 count 33 target epoch 4 b0 "
                        "param begin 0 count 33\n")
            .ends_with(": the device keeps elements [0, 32) of the array"));
  CHECK(migration(copy, "  copy-state source epoch 4 b0 param begin 0 count 16 target epoch 4 b0 "
                        "param begin 0 count 16\n")
            .ends_with(": it moves state of epoch 4 to epoch 4"));
}

TEST_CASE("every send has its receive, and channels have one order") {
  CHECK(pipeline("recv edge 0 @1 as g1 from g0 -> (s1)", "recv edge 1 @1 as g1 from g0 -> (s1)") ==
        "device 0, role g0, send l0 @1 to g1: device 1 never receives edge 0 (l0 on g1) @1");
  CHECK(pipeline("recv edge 0 @1 as g1 from g0 -> (s1)", "recv edge 0 @0 as g1 from g0 -> (s1)") ==
        "role g1, recv l0 @0 from g0: slot s1 (l0 @1 on g1) is of another microbatch");
  CHECK(pipeline("  send edge 0 @1 as g0 to g1 (s5) free s5\n",
                 "  send edge 1 @1 as g0 to g1 (s5) free s5\n") ==
        "device 0, role g0, send l0 @1 to g1: device 1 never receives edge 1 (d.l0 on g0) @1");
  CHECK(error_of(moved(pipeline_plans(),
                       "  recv edge 0 @0 as g1 from g0 -> (s0) stream recv record e0",
                       "  recv edge 0 @1 as g1 from g0 -> (s1) stream recv record e1"),
                 2) ==
        "device 1, role g1, recv l0 @1 from g0: it receives edge 0 (l0 on g1) @1 where device 0 "
        "sends edge 0 (l0 on g1) @0: a channel has one order");
  CHECK(error_of(replaced(migration_plans(), "count 16 device 1\n", "count 16 device 7\n"), 1)
            .ends_with(": there is no device at the other end"));
  CHECK(error_of(replaced(migration_plans(), "count 16 device 1\n", "count 16 device 0\n"), 1)
            .ends_with(": a device sends to itself"));
}

TEST_CASE("a collective has an edge of its own") {
  CHECK(pipeline("commit edge 2 buckets b1", "commit edge 1 buckets b1") ==
        "role g1, commit: edge 1 (d.l0 on g0) is the edge of recv d.l0 @0 from g1 too");
}

TEST_CASE("a deadlock under blocking sends is told as the circle of waits") {
  std::string text = pipeline_plans();
  const std::string first = "  recv edge 1 @0 as g0 from g1 -> (s6) stream recv record e0";
  text = moved(text, first, "  slot s7 d.v1 @1 on g0 is f32[B,4]");
  text = replaced(text, "g1 (s2) free s2", "g1 (s2) free s2 wait e0");
  const std::string message = error_of(text, 2);
  CHECK(message.find("the plans deadlock when sends block: ") != std::string::npos);
  CHECK(message.ends_with(
      ": device 0 at recv d.l0 @0 from g1 [edge 1 (d.l0 on g0) @0], which waits for device 1 at F "
      "l1..loss @0, which waits for device 1 at recv l0 @0 from g0 [edge 0 (l0 on g1) @0], which "
      "waits for device 0 at send l0 @0 to g1 [edge 0 (l0 on g1) @0], which waits for device 0 at "
      "recv d.l0 @0 from g1 [edge 1 (d.l0 on g0) @0]"));
}

TEST_CASE("two devices that both send first deadlock, and are fine with a stream for receives") {
  std::string text = migration_plans();
  CHECK(verified(text, 1).ok());
  for (int role = 0; role < 2; ++role)
    text.erase(text.find(" stream recv"), std::string(" stream recv").size());
  CHECK(error_of(text, 1).find("the plans deadlock when sends block: device 0 at send-state param "
                               "of bucket 0 [0, 16) to device 1 [edge 0") != std::string::npos);
}
