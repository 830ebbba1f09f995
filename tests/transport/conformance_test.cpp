// Every scenario on every kind of world.
#include "worlds.h"

#include <catch2/catch.hpp>

using namespace piper::transport::testing;

TEST_CASE("transport conformance") {
  for (const auto& world : worlds())
    for (const auto& scenario : scenarios())
      DYNAMIC_SECTION(world.name << ": " << scenario.name) {
        CHECK(world.run(scenario) == "");
      }
}
