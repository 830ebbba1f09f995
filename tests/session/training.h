// Small sessions for the tests.
#pragma once

#include "actors/session.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace piper::test {

inline const std::string kModel =
    R"({"layers": 4, "d_in": 8, "d_hidden": 16, "d_out": 4, "batch": 8, "dtype": "float64"})";

Model mlp(const std::string& config = kModel);
/// By the name of a builder, as the command line takes it.
ir::Strategy named(const std::string& expression, int64_t microbatches = 2);
SessionOptions options(uint32_t devices);
/// Fails the test if there is none.
std::unique_ptr<Session> open(const std::string& strategy, SessionOptions options,
                              Model model = mlp());
std::vector<double> losses(Session& session, int64_t iterations);
/// Of a session that nobody disturbs.
std::vector<double> undisturbed(int64_t iterations, const std::string& strategy = "single");
/// Waits until `count` changes wait for their turn; fails the test if they never do.
void wait_for_changes(const Session& session, size_t count);
/// Of a pipeline of two stages: spans in order, and none before what it depends on, on either
/// device.
void check_timeline(const ir::Timeline& timeline);
/// Equal but for the order of sums.
bool close(const std::vector<double>& a, const std::vector<double>& b);
/// The largest, of any element.
double difference(const at::Tensor& a, const at::Tensor& b);

/// Makes every module ask before it is built, so that a test can spoil a preparation.
struct Builds {
  std::atomic<bool> fail{false};
  std::atomic<int> sleep_ms{0};
};
Model watched(std::shared_ptr<Builds> builds, Model model = mlp());

} // namespace piper::test
