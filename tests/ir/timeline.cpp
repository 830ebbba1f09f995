#include "ir/timeline.h"

#include <catch2/catch.hpp>

using namespace piper::ir;

TEST_CASE("timelines of several clocks on one axis") {
  const auto of = [](DeviceIndex device, int64_t origin) {
    Timeline timeline{origin, {{device, 1, "compute", {}}, {device, 1, "recv", {}}}, {}};
    timeline.lanes[0].spans.push_back({"F", Opcode::Forward, 0, 0, 1});
    timeline.messages.push_back({0, 1, 0.25, 0.5});
    return timeline;
  };
  Timeline all;
  CHECK(all.end() == 0);
  all.append(of(0, 5'000'000'000));
  CHECK(all.origin == 5'000'000'000);
  all.append(of(1, 4'000'000'000)); // began a second earlier
  all.append(of(2, 7'000'000'000)); // and two later
  CHECK(all.origin == 4'000'000'000);
  REQUIRE(all.lanes.size() == 6);
  CHECK(all.lanes[0].spans[0].start == 1);
  CHECK(all.lanes[2].spans[0].start == 0);
  CHECK(all.lanes[4].spans[0].end == 4);
  CHECK(all.end() == 4);
  REQUIRE(all.messages.size() == 3);
  CHECK(all.messages[0].start == 1.25);
  CHECK(all.messages[2].from == 4);
  CHECK(all.messages[2].to == 5);
  CHECK(all.messages[2].end == 3.5);
}
