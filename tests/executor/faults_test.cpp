// Failures are values that name device and instruction, and leave the state as it was.
#include "tests/executor/rig.h"

#include <torch/torch.h>

#include <atomic>
#include <future>
#include <thread>

#include <catch2/catch.hpp>

namespace piper::test {
namespace {

ir::Strategy alone(int64_t microbatches = 1) {
  ir::Strategy strategy;
  return strategy.split({}, microbatches).place({}, {0});
}
ir::Strategy pipeline() {
  ir::Strategy s;
  return s.split({}, 2)
      .place({{"layer", std::vector<int64_t>{0, 1}}}, {0})
      .place({{"layer", std::vector<int64_t>{2, 3}}}, {1});
}

/// A data source that can be told to misbehave at the next request for `target`.
struct Switch {
  std::atomic<int> mode{0}; ///< 0: none, 1: wrong shape, 2: throw, 3: block
  std::promise<void> blocked, released;
  std::shared_ptr<const Model> model(const std::shared_ptr<const Model>& from) {
    return with_data(*from, [this, data = from->data](const BatchRequest& request) {
      at::Tensor rows = data(request);
      if (request.input == "target")
        switch (mode.exchange(0)) {
        case 1:
          return at::cat({rows, rows}, 1);
        case 2:
          throw std::runtime_error("the disk is gone");
        case 3:
          blocked.set_value();
          released.get_future().wait();
          break;
        default:
          break;
        }
      return rows;
    });
  }
};

} // namespace

TEST_CASE("a bad data source fails the iteration alone") {
  Switch faults;
  Rig rig(faults.model(skip_model()), 1, fast_options());
  auto model = skip_model();
  Reference reference(*model, fast_options());
  rig.start(alone(2)).value_or_throw();
  rig.run(0).value_or_throw();
  auto hashes = *rig.device(0).parameter_hashes();
  int64_t live = rig.device(0).live_bytes();
  std::string expected;
  SECTION("wrong shape") {
    faults.mode = 1;
    expected = "device 0, input target @0: the data source gave f64[6,2] for input 'target', which "
               "is f64[6,1]";
  }
  SECTION("an exception") {
    faults.mode = 2;
    expected = "device 0, input target @0: the disk is gone";
  }
  auto failed = rig.run(1);
  REQUIRE(failed.error().to_string() == expected);
  REQUIRE(failed.error().kind == ErrorKind::User);
  REQUIRE((*rig.device(0).parameter_hashes() == hashes));
  REQUIRE(rig.device(0).live_bytes() == live);
  REQUIRE((rig.run(1).error() == failed.error())); // until it recovers
  rig.device(0).recover();
  rig.run(1).value_or_throw();
  reference.step(0, 2);
  reference.step(1, 2);
  REQUIRE(difference(rig.params(), reference.params()) == 0);
}

TEST_CASE("an iteration that fails after updates which did not wait for it leaves a torn state") {
  // The backward of the first call fails when those of the later ones have been updated.
  auto fails = std::make_shared<std::atomic<bool>>(false);
  Model model = *skip_model();
  model.modules[0].make = [make = model.modules[0].make, fails] {
    BuiltModule built = make();
    built.forward = [forward = built.forward, fails](const Tensors& inputs) {
      Tensors outputs = forward(inputs);
      if (outputs[0].requires_grad())
        outputs[0].register_hook([fails](const at::Tensor& gradient) {
          if (*fails)
            throw std::runtime_error("a bad gradient");
          return gradient;
        });
      return outputs;
    };
    return built;
  };
  const auto shared = std::make_shared<const Model>(model);
  auto strategy = [](bool fused) {
    ir::Strategy s;
    s.replicate(ir::Replicate{.devices = {0}, .bucket_mb = 1e-9});
    return fused ? s.fuse({}, true) : s;
  };
  for (const bool fused : {false, true}) {
    *fails = false;
    Rig rig(shared, 1, fast_options());
    Reference reference(*shared, fast_options());
    rig.start(strategy(fused)).value_or_throw();
    rig.run(0).value_or_throw();
    reference.step(0, 1);
    REQUIRE(difference(rig.params(), reference.params()) == 0);
    *fails = true;
    const auto failed = rig.run(1);
    REQUIRE(failed.error().message == "a bad gradient");
    *fails = false;
    rig.device(0).recover();
    REQUIRE(rig.device(0).updated().has_value() == !fused);
    if (!fused) {
      rig.run(1).value_or_throw();
      reference.step(1, 1);
      REQUIRE(difference(rig.params(), reference.params()) == 0);
      continue;
    }
    REQUIRE(difference(rig.params(), reference.params()) > 0);
    REQUIRE(rig.run(1).error().message ==
            "an iteration failed after some of its updates had been made");
    rig.device(0).initialize(0).value_or_throw();
    rig.device(0).recover();
    rig.run(0).value_or_throw();
    REQUIRE(difference(rig.params(), reference.params()) == 0);
  }
}

TEST_CASE("updates that do not wait for the gradient norm cannot be clipped") {
  executor::DeviceOptions options = fast_options();
  options.optimizer.clip_norm = 1;
  Rig rig(skip_model(), 1, options);
  const auto refused = rig.start(alone().fuse({}, true));
  REQUIRE_FALSE(refused.ok());
  REQUIRE(refused.error().kind == ErrorKind::User);
  REQUIRE(refused.error().message ==
          "it does not wait for the gradient norm, which is clipped: that "
          "takes all gradients before the first update");
  REQUIRE(refused.error().where.find("update ") != std::string::npos);
  rig.start(alone()).value_or_throw();
}

TEST_CASE("a module that throws is named") {
  Model model = *skip_model();
  model.modules[2].make = [] {
    return BuiltModule{nullptr, [](const Tensors& in) {
                         return Tensors{at::mm(in[0], at::zeros({3, 3}, at::kDouble))};
                       }};
  };
  model.modules[2].params.clear();
  Rig rig(std::make_shared<const Model>(model), 1, fast_options());
  rig.start(alone()).value_or_throw();
  auto failed = rig.run(0);
  REQUIRE(failed.error().where == "device 0, F c @0");
  REQUIRE(failed.error().message == "mat1 and mat2 shapes cannot be multiplied (12x8 and 3x3)");
}

TEST_CASE("an abort ends the iteration; nothing is lost") {
  Switch faults;
  Rig rig(faults.model(skip_model()), 1, fast_options());
  auto model = skip_model();
  Reference reference(*model, fast_options());
  rig.start(alone(2)).value_or_throw();
  rig.run(0).value_or_throw();
  auto hashes = *rig.device(0).parameter_hashes();
  const Error reason{ErrorKind::Cancelled, "enough", "the test", ""};
  SECTION("while it runs") {
    faults.mode = 3;
    Error error;
    std::thread running([&] { error = rig.device(0).run(1).error(); });
    faults.blocked.get_future().wait();
    rig.device(0).abort(reason);
    faults.released.set_value();
    running.join();
    REQUIRE((error == reason));
  }
  SECTION("before it runs") {
    rig.device(0).abort(reason);
    REQUIRE((rig.run(1).error() == reason));
  }
  REQUIRE((*rig.device(0).parameter_hashes() == hashes));
  rig.device(0).recover();
  rig.run(1).value_or_throw();
  reference.step(0, 2);
  reference.step(1, 2);
  REQUIRE(difference(rig.params(), reference.params()) == 0);
}

TEST_CASE("an abort wakes a device that waits for its peer") {
  Rig rig(skip_model(), 2, fast_options());
  rig.start(pipeline()).value_or_throw();
  Error error;
  std::thread waiting([&] { error = rig.device(1).run(0).error(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Error reason{ErrorKind::PeerAborted, "device 0 is gone", "the test", ""};
  rig.device(1).abort(reason);
  waiting.join();
  REQUIRE((error == reason));
}

TEST_CASE("a wait for a peer that never comes is a timeout that names it") {
  auto options = fast_options();
  options.deadline = std::chrono::milliseconds(100);
  Rig rig(skip_model(), 2, options);
  rig.start(pipeline()).value_or_throw();
  auto failed = rig.device(1).run(0);
  REQUIRE(failed.error().kind == ErrorKind::Timeout);
  INFO(failed.error().to_string());
  // Either the receive or what waits for its event passes the deadline first.
  REQUIRE(failed.error().where.find("device 1, ") == 0);
  REQUIRE((failed.error().where.find("recv") != std::string::npos ||
           failed.error().message.find("recv") != std::string::npos));
}

TEST_CASE("an instruction that does not come back is named") {
  Switch faults;
  auto options = fast_options();
  options.deadline = std::chrono::milliseconds(60);
  Rig rig(faults.model(skip_model()), 1, options);
  rig.start(alone()).value_or_throw();
  auto hashes = *rig.device(0).parameter_hashes();
  faults.mode = 3;
  auto failed = rig.run(0);
  REQUIRE(failed.error().kind == ErrorKind::Timeout);
  REQUIRE(failed.error().message.find("still running after 60 ms") == 0);
  REQUIRE(failed.error().where == "device 0, input target @0");
  rig.device(0).recover(); // it still runs
  REQUIRE((rig.run(0).error() == failed.error()));
  faults.released.set_value();
  rig.device(0).recover();
  REQUIRE((*rig.device(0).parameter_hashes() == hashes));
  REQUIRE(rig.run(0).ok());
}

TEST_CASE("passing the memory cap names device, instruction and the largest holders") {
  auto options = fast_options();
  Rig free(skip_model(1200), 1, options);
  free.start(alone()).value_or_throw();
  free.run(0).value_or_throw();
  options.memory_cap = free.device(0).peak_bytes();
  {
    Rig enough(skip_model(1200), 1, options);
    enough.start(alone()).value_or_throw();
    REQUIRE(enough.run(0).ok());
  }
  options.memory_cap -= 1;
  Rig tight(skip_model(1200), 1, options);
  tight.start(alone()).value_or_throw();
  auto hashes = *tight.device(0).parameter_hashes();
  int64_t live = tight.device(0).live_bytes();
  auto failed = tight.run(0);
  INFO(failed.error().to_string());
  REQUIRE(failed.error().kind == ErrorKind::OutOfMemory);
  REQUIRE(failed.error().where.find("device 0, ") == 0);
  REQUIRE(failed.error().message.find("would pass the memory cap of ") != std::string::npos);
  REQUIRE(failed.error().message.find("; the largest holders: activations of F ") !=
          std::string::npos);
  REQUIRE(failed.error().hint == "more microbatches, more devices or a higher cap");
  REQUIRE((*tight.device(0).parameter_hashes() == hashes));
  REQUIRE(tight.device(0).live_bytes() == live);
  tight.device(0).recover();
  // With microbatches it fits.
  tight.change(alone(4)).value_or_throw();
  REQUIRE(tight.run(0).ok());
}

TEST_CASE("a cap that the state alone passes is refused when preparing") {
  auto options = fast_options();
  options.memory_cap = 5000;
  Rig rig(skip_model(), 1, options);
  auto refused = rig.start(alone());
  REQUIRE(refused.error().kind == ErrorKind::OutOfMemory);
  REQUIRE(refused.error().where == "device 0, prepare");
  REQUIRE(refused.error().message.find("parameters (") != std::string::npos);
  REQUIRE(rig.device(0).live_bytes() == 0);
}

} // namespace piper::test
