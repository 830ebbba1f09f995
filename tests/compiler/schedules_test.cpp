// The published schedules as tables: their figures, their formulas, and tables that are none.
#include "compiler/strategies/named_schedules.h"
#include "compiler/strategies/schedules.h"
#include "tests/compiler/models.h"

#include <rapidcheck.h>

#include <algorithm>
#include <fstream>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::compiler;
using namespace piper::test;
using Catch::Matchers::Contains;

namespace {

const std::vector<std::string> kNames = {
    "gpipe", "1f1b",  "interleaved", "loopedbfs", "zbh1",      "zbh2", "zb1p",
    "zbv",   "vhalf", "vmin",        "dualpipe",  "dualpipev", "wave"};

ScheduleTable table_of(const std::string& name, int p, int64_t m, int v = 0) {
  std::map<std::string, int> options;
  if (v > 0)
    options["v"] = v;
  auto table = named_schedule(name, p, m, options);
  if (!table.ok())
    FAIL(table.error().to_string());
  if (auto checked = table->check(); !checked.ok())
    FAIL(checked.error().to_string());
  return *table;
}

/// Times of a rank's whole part of the model, whatever the number of its stages; peaks in its
/// microbatches.
struct Measured {
  double makespan, idle, gaps, peak; ///< of the worst rank
};

Measured measure(const ScheduleTable& table, const Durations& durations = {}) {
  const int v = table.stages() / table.ranks();
  const auto timing = table.evaluate(durations.divided(v));
  if (!timing.ok())
    FAIL(timing.error().to_string());
  const auto worst = [](const auto& list) { return *std::max_element(list.begin(), list.end()); };
  return {timing->makespan, worst(timing->idle), worst(timing->gaps),
          static_cast<double>(worst(timing->peak)) / v};
}

ScheduleTable parse(const std::string& text) {
  auto table = ScheduleTable::parse(text);
  if (!table.ok())
    FAIL(table.error().to_string());
  return *table;
}

Error check_error(const std::string& text) {
  const auto checked = parse(text).check();
  REQUIRE_FALSE(checked.ok());
  CHECK(checked.error().kind == ErrorKind::User);
  CHECK_FALSE(checked.error().hint.empty());
  return checked.error();
}

Error csv_error(const std::string& csv) {
  const auto table = ScheduleTable::parse_csv(csv, "s.csv");
  REQUIRE_FALSE(table.ok());
  CHECK_FALSE(table.error().hint.empty());
  return table.error();
}

} // namespace

TEST_CASE("the pictures of docs/schedules.md") {
  // A block that starts with "NAME:P, M microbatches" shows that schedule and its times. With
  // PIPER_UPDATE_GOLDEN set the blocks are rewritten: read the diff.
  const std::string path = std::string(PIPER_SOURCE_DIR) + "/docs/schedules.md";
  std::istringstream lines(read_file(path));
  std::string made;
  std::vector<std::string> shown;
  for (std::string line; std::getline(lines, line);) {
    made += line + "\n";
    char name[32];
    int p = 0, m = 0;
    if (std::sscanf(line.c_str(), "%31[a-z0-9]:%d, %d microbatches", name, &p, &m) != 3)
      continue;
    shown.push_back(name);
    const ScheduleTable table = table_of(name, p, m);
    const Measured measured = measure(table);
    made += table.to_text();
    std::ostringstream figures;
    figures << "makespan " << measured.makespan << ", idle " << measured.idle << ", gaps "
            << measured.gaps << ", keeps " << measured.peak << "\n";
    made += figures.str() + "```\n";
    while (std::getline(lines, line) && line != "```")
      ;
  }
  std::sort(shown.begin(), shown.end());
  std::vector<std::string> names = kNames;
  std::sort(names.begin(), names.end());
  CHECK(shown == names);
  if (std::getenv("PIPER_UPDATE_GOLDEN"))
    std::ofstream(path) << made;
  else
    CHECK(made == read_file(path));
}

TEST_CASE("1F1B is as in the figure of its paper") {
  const auto row = [](int rank) {
    std::string text;
    const ScheduleTable table = table_of("1f1b", 4, 8);
    for (const Step& step : table.rows()[rank])
      text += step.to_string().substr(1) + " ";
    return text;
  };
  CHECK(row(0) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7 ");
  CHECK(row(2) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7 ");
  CHECK(row(3) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 ");
}

TEST_CASE("the exact small cases") {
  const auto small = [](const char* name) { return measure(table_of(name, 4, 8)); };
  const auto is = [&](const char* name, double makespan, double idle) {
    INFO(name);
    CHECK(small(name).makespan == makespan);
    CHECK(small(name).idle == idle);
  };
  is("gpipe", 33, 9);
  is("1f1b", 33, 9);
  is("interleaved", 28.5, 4.5);
  is("loopedbfs", 28.5, 4.5);
  is("zbh1", 27, 3);
  is("zb1p", 25.5, 1.5);
  is("zbv", 25.5, 1.5);
  is("dualpipev", 27, 3);
  CHECK(small("zbh2").gaps == 0);
  CHECK(small("zbv").gaps == 0);
}

TEST_CASE("idle time and what is kept follow the published formulas") {
  // They hold where W is no longer than F and I; ZBV's where the three are equal, and DualPipe's is
  // a bound otherwise.
  const Durations durations =
      GENERATE(Durations{}, Durations{.F = 2, .I = 3, .W = 2, .B = 5, .FB = 6});
  const auto [F, I, W, B, FB] = durations;
  for (int p : {2, 4, 8, 16})
    for (int64_t m : {2 * p, 3 * p, 4 * p}) {
      INFO("p=" << p << " m=" << m << " F=" << F);
      const auto of = [&, &durations = durations](const char* name, int v = 0) {
        return measure(table_of(name, p, m, v), durations);
      };
      CHECK(of("gpipe").idle == (p - 1) * (F + B));
      CHECK(of("gpipe").peak == m);
      CHECK(of("1f1b").idle == (p - 1) * (F + B));
      const auto timing = table_of("1f1b", p, m).evaluate();
      for (int rank = 0; rank < p; ++rank)
        CHECK(timing->peak[rank] == p - rank);
      for (int v : {2, 4}) {
        CHECK(of("interleaved", v).idle == (p - 1) * (F + B) / v);
        CHECK(of("interleaved", v).peak == p * (1 + (p - 1.0) / (p * v)));
        CHECK(of("loopedbfs", v).idle == (p - 1) * (F + B) / v);
        CHECK(of("loopedbfs", v).peak == m);
        CHECK(of("zb1p", v).idle == (p - 1) * (F + I - W) / v);
        CHECK(of("zb1p", v).peak == p);
      }
      CHECK(of("zbh1").idle == (p - 1) * (F + I - W));
      CHECK(of("zbh1").peak == p);
      CHECK(of("zbh2").gaps == (p - 1) * (F + I - 2 * W));
      CHECK(of("zbh2").peak == 2 * p - 1);
      CHECK(of("zbv").peak == p);
      CHECK(of("dualpipev").peak <= p + 1);
      // Each of DualPipe's two stages is a whole rank's part of the model.
      const auto dual = table_of("dualpipe", p, m).evaluate(durations);
      const double idle = *std::max_element(dual->idle.begin(), dual->idle.end());
      const double formula = FB + B - 3 * W;
      CHECK(idle <= (p / 2 - 1) * formula);
      CHECK(of("dualpipev").idle <= (p - 1) * formula / 2);
      if (F == I && I == W) {
        CHECK(of("zbv").gaps == 0);
        CHECK(idle == (p / 2 - 1) * formula);
        CHECK(of("dualpipev").idle == (p - 1) * formula / 2);
      }
      CHECK(*std::max_element(dual->peak.begin(), dual->peak.end()) == p + 1);
    }
}

TEST_CASE("V-half and V-min have their share of 1F1B's idle time and memory") {
  for (int p : {2, 3, 4, 5, 6, 7, 8, 12, 16, 32}) {
    INFO("p=" << p);
    const int64_t m = 3 * p;
    const double bubble = measure(table_of("1f1b", p, m)).idle;
    const Measured half = measure(table_of("vhalf", p, m)), min = measure(table_of("vmin", p, m));
    CHECK(half.idle <= bubble / 2);
    CHECK(half.peak <= p / 2.0 + 1);
    CHECK(min.idle <= (p == 3 ? 4.0 : bubble * 2 / 3));
    CHECK(min.peak <= p / 3.0 + 4.0 / 3);
  }
}

TEST_CASE("a wave leaves nothing idle but the way to the last rank, in the memory of 1F1B") {
  for (int p : {2, 3, 4, 8, 16})
    for (int v : {4, 6, 8})
      for (int64_t m : {2 * p, 3 * p, 4 * p + 1}) {
        INFO("p=" << p << " v=" << v << " m=" << m);
        const ScheduleTable table = table_of("wave", p, m, v);
        // The zig-zag: neighbours at a turn share their rank, and stage s is on one rank alone.
        for (int s = 0; s < p * v; ++s)
          CHECK(table.ranks_of(s) == std::vector<int>{s / p % 2 == 0 ? s % p : p - 1 - s % p});
        const Measured wave = measure(table);
        CHECK(wave.idle == Approx((p - 1.0) / v));
        CHECK(wave.peak <= p);
        CHECK(wave.idle < measure(table_of("zbv", p, m)).idle);
      }
}

TEST_CASE("a wave of one V is ZBV") {
  for (int p : {2, 4, 8})
    for (int64_t m : {1, p, 3 * p})
      CHECK(table_of("wave", p, m, 2) == table_of("zbv", p, m));
}

TEST_CASE("ours are at least as good as PyTorch's of the same name") {
  // Written by PyTorch 2.11 for 2 ranks and 8 microbatches.
  const auto theirs = [](const std::string& csv) {
    auto table = ScheduleTable::parse_csv(csv);
    REQUIRE(table.ok());
    return measure(*table);
  };
  const Measured zbv = theirs(
      "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0F3,0I0,0W0,3F2,3I2,3W2,0F4,0I1,0W1,3F3,3I3,3W3,0F5,0I2,"
      "0W2,3F4,3I4,3W4,0F6,0I3,0W3,3F5,3I5,3W5,0F7,0I4,0W4,3F6,3I6,3W6,0I5,0W5,3F7,3I7,3W7,0I6,0W6,"
      "0I7,0W7\n"
      ",1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1F3,1I1,1W1,2F3,2I2,2W2,1F4,1I2,1W2,2F4,"
      "2I3,"
      "2W3,1F5,1I3,1W3,2F5,2I4,2W4,1F6,1I4,1W4,2F6,2I5,2W5,1F7,1I5,1W5,2F7,2I6,2W6,1I6,2I7,1I7,1W6,"
      "2W7,1W7\n");
  const Measured ours = measure(table_of("zbv", 2, 8));
  CHECK(ours.makespan <= zbv.makespan);
  CHECK(ours.peak <= zbv.peak);
}

TEST_CASE("any shape gives a table that runs") {
  CHECK(rc::check("of every name", [] {
    const std::string name = *rc::gen::elementOf(kNames);
    const int p = *rc::gen::inRange(1, 10);
    const int64_t m = *rc::gen::inRange(1, 25);
    std::map<std::string, int> options;
    if (name == "interleaved" || name == "loopedbfs" || name == "zb1p")
      options["v"] = *rc::gen::inRange(2, 5);
    if (name == "wave")
      options["v"] = 2 * *rc::gen::inRange(1, 4);
    const auto table = named_schedule(name, p, m, options);
    if (!table.ok()) {
      RC_ASSERT(name == "dualpipe" && p % 2 == 1);
      RC_ASSERT(table.error().message.find("even number of ranks") != std::string::npos);
      return;
    }
    const auto checked = table->check();
    if (!checked.ok())
      RC_FAIL(checked.error().to_string());
    RC_ASSERT(table->microbatches() == m);
    const auto parsed = ScheduleTable::parse(table->to_text());
    RC_ASSERT(parsed.ok() && *parsed == *table);
    const auto read = ScheduleTable::parse_csv(table->to_csv());
    RC_ASSERT(read.ok() && *read == *table);
  }));
}

TEST_CASE("a spoilt table is caught") {
  CHECK(rc::check("an action dropped, doubled, moved to another rank or before its time", [] {
    const std::string name = *rc::gen::elementOf(kNames);
    const int p = 2 * *rc::gen::inRange(1, 4);
    auto rows = table_of(name, p, *rc::gen::inRange(1, 9)).rows();
    const int rank = *rc::gen::inRange(0, p);
    auto& row = rows[rank];
    const auto at = row.begin() + *rc::gen::inRange<int>(0, row.size());
    const Step step = *at;
    switch (*rc::gen::inRange(0, 4)) {
    case 0:
      row.erase(at);
      break;
    case 1:
      row.insert(at, step);
      break;
    case 2:
      row.erase(at);
      rows[(rank + 1) % p].push_back(step);
      break;
    default: {
      // The last backward of the row before everything else.
      row.insert(row.begin(), row.back());
      row.pop_back();
    }
    }
    RC_ASSERT_FALSE(ScheduleTable(rows).check().ok());
  }));
}

TEST_CASE("what check says of a table that is no schedule") {
  CHECK_THAT(check_error("rank 0: 0F0 0B0 0B0").to_string(),
             Contains("rank 0, step 2: 0B0 is there twice, first at rank 0, step 1"));
  CHECK_THAT(check_error("rank 0: 0F0 0B0 0F1").message,
             Contains("stage 0 has no backward (B) of microbatch 1"));
  CHECK_THAT(check_error("rank 0: 0F0 0I0").message,
             Contains("stage 0 has no backward for weights (W) of microbatch 0"));
  CHECK_THAT(check_error("rank 0: 0F0 0W0").message,
             Contains("stage 0 has no backward for inputs (I) of microbatch 0"));
  CHECK_THAT(check_error("rank 0: 0F0 0B0 0W0").message,
             Contains("stage 0 has both B and W of microbatch 0"));
  CHECK_THAT(check_error("rank 0: 1F0 1B0").message,
             Contains("stage 0 has no forward (F) of microbatch 0"));
  CHECK_THAT(check_error("rank 0: 0F0\nrank 1: 0B0").message,
             Contains("stage 0 runs microbatch 0 forward on rank 0 and backward on rank 1"));
  CHECK_THAT(check_error("rank 0: 0F0&0F1 0B0 0B1").message,
             Contains("0F0&0F1 is no forward beside a backward"));
  CHECK_THAT(check_error("rank 0: 0B0 0F0").to_string(),
             Contains("rank 0, step 0: 0B0 can never start: it needs 0F0, which this rank runs "
                      "later, at step 1"));
  CHECK_THAT(check_error("rank 0: 0F0&0B0").message,
             Contains("0F0&0B0 can never start: it needs 0F0, which runs beside it"));
  CHECK_THAT(
      check_error("rank 0: 0F0 0B0 0F1 0B1\nrank 1: 1F0 1F1 1B0 1B1").to_string(),
      Contains("rank 0, step 1: 0B0 can never start: it needs 1B0, which rank 1 runs at step "
               "2, but it gets no further than step 1"));
  CHECK_THAT(check_error("").message, Contains("the schedule is empty"));
  CHECK_THAT(check_error("rank 0: 0F0 0B0\nrank 1:").message,
             Contains("rank 1 has nothing to run"));
}

TEST_CASE("the text form, read by people and by us") {
  const ScheduleTable table = parse("rank 0: 0F0 0F1 . . 0B0---- .\n\nrank 1: 1F0 1F1&1B0 1B1\n");
  CHECK(table.ranks() == 2);
  CHECK(table.rows()[1][1] == Step({1, 'F', 1}, Action{1, 'B', 0}));
  CHECK(ScheduleTable::parse("rank 1: 0F0").error().message == "expected 'rank 0:'");
  CHECK(ScheduleTable::parse("rank 0: 0F0 0X0")
            .error()
            .to_string()
            .starts_with("line 1: '0X0' is no step"));
  CHECK_FALSE(ScheduleTable::parse("rank 0: 0F-1").ok());
  CHECK_FALSE(ScheduleTable::parse("rank 0: 0F9999999").ok());
}

TEST_CASE("PyTorch's CSV, with and without communication") {
  const auto table = ScheduleTable::parse_csv("0F0,,0F1, 0B0 ,0B1\r\n,1F0,1I0,1W0,1F1,1B1\r\n");
  REQUIRE(table.ok());
  CHECK(table->check().ok());
  CHECK(table->to_csv() == "0F0,0F1,0B0,0B1\n1F0,1I0,1W0,1F1,1B1\n");
  const auto with = ScheduleTable::parse_csv(
      "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n"
      "1UNSHARD,1RECV_F0,1F0,1I0,1SEND_B0,1W0,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\n");
  REQUIRE(with.ok());
  CHECK(*with == *table);
  const auto pair = ScheduleTable::parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1");
  REQUIRE(pair.ok());
  CHECK(pair->check().ok());
  CHECK(pair->to_csv() == "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
}

TEST_CASE("a CSV that is none says where") {
  CHECK(csv_error("0F0,0B0\n1F0,oops\n")
            .to_string()
            .starts_with("s.csv, row 2, column 2: 'oops' is no action"));
  for (const char* cell : {"0F", "F0", "0Q0", "0F0x", "0F0;0B0", "(0F0)OVERLAP_F_B", "0UNSHARD3",
                           "1SEND_F", "(0F0;0B1)", "-1F0", "0F99999999999999999999"}) {
    INFO(cell);
    CHECK_THAT(csv_error(cell).to_string(),
               Contains("s.csv, row 1, column 1") && Contains("is no action"));
  }
  CHECK(csv_error("0SEND_F0,0F0").message == "0SEND_F0 sends what 0F0 has not made yet");
  CHECK(csv_error("1F0,1RECV_F0").message == "1RECV_F0 comes after 1F0, which reads it");
  CHECK_THAT(csv_error("1F0,1RECV_F1").message, Contains("has no reader 1F1 in this row"));
  CHECK(csv_error("0F0,0REDUCE_GRAD,0B0").message ==
        "0B0 comes after the REDUCE_GRAD of its stage");
}

TEST_CASE("options and names that a schedule does not have") {
  const auto error = [](const std::string& name, std::map<std::string, int> options) {
    const auto table = named_schedule(name, 4, 8, options);
    REQUIRE_FALSE(table.ok());
    return table.error();
  };
  CHECK(error("interleaved", {{"w", 2}}).message == "interleaved has no option 'w'");
  CHECK_THAT(error("interleaved", {{"w", 2}}).hint, Contains("its option is v"));
  CHECK_THAT(error("zbv", {{"v", 3}}).hint, Contains("a rank has 2 stages"));
  CHECK(error("interleaved", {{"v", 1}}).message ==
        "v=1 is too few stages of a rank for interleaved");
  CHECK_THAT(error("zigzag", {}).hint, Contains("interleaved:P") && Contains("dualpipev:P"));
  const auto odd = named_schedule("dualpipe", 3, 8);
  CHECK_THAT(odd.error().hint, Contains("use 2 or 4"));
}
