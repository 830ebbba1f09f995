#include "compiler/frontend/memory.h"

#include "actors/executor/device.h"

#include <torch/torch.h>

#include <optional>
#include <thread>

#include <catch2/catch.hpp>

namespace piper::executor {

TEST_CASE("memory is counted to the byte, by holder") {
  auto account = MemoryAccount::make(0);
  Holder &a = account->holder("a"), &b = account->holder("b");
  REQUIRE(&account->holder("a") == &a);
  at::Tensor x, y;
  {
    HolderScope scope(&a);
    x = at::empty({1000}, at::kDouble);
    {
      HolderScope inner(&b);
      y = at::empty({3}, at::kByte);
    }
    REQUIRE(at::empty({10}).defined()); // freed at once
  }
  at::Tensor unaccounted = at::empty({5000});
  REQUIRE(account->live() == 8003);
  REQUIRE(account->peak() == 8043);
  REQUIRE(reinterpret_cast<uintptr_t>(y.data_ptr()) % 64 == 0);
  REQUIRE(account->largest(2) == "a (8.0 kB), b (3 B)");
  REQUIRE(account->largest(1) == "a (8.0 kB)");
  std::thread([&] { x.reset(); }).join(); // freed elsewhere, credited here
  REQUIRE(account->live() == 3);
  auto holders = account->holders();
  REQUIRE(holders.size() == 1);
  REQUIRE(holders[0].what == "b");
  REQUIRE(holders[0].bytes == 3);
}

TEST_CASE("threads count into one account") {
  auto account = MemoryAccount::make(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      HolderScope scope(&account->holder(t % 2 ? "odd" : "even"));
      std::vector<at::Tensor> kept;
      for (int i = 0; i < 2000; ++i) {
        kept.push_back(at::empty({i % 50 + 1}, at::kByte));
        if (i % 3)
          kept.erase(kept.begin());
      }
    });
  for (auto& thread : threads)
    thread.join();
  REQUIRE(account->live() == 0);
  REQUIRE(account->holders().empty());
  REQUIRE(account->peak() > 0);
}

TEST_CASE("an account outlives its owner while memory of it is alive") {
  at::Tensor x;
  {
    auto account = MemoryAccount::make(0);
    HolderScope scope(&account->holder("a"));
    x = at::ones({100});
  }
  REQUIRE(x.sum().item<float>() == 100);
  x.reset();
}

TEST_CASE("a cap refuses what would pass it and counts nothing for it") {
  auto account = MemoryAccount::make(1000);
  HolderScope scope(&account->holder("a"));
  at::Tensor x = at::empty({900}, at::kByte);
  std::string message;
  try {
    at::empty({101}, at::kByte);
  } catch (const c10::OutOfMemoryError& e) {
    message = e.msg();
  }
  REQUIRE(message == "101 B more than the 900 B in use would pass the memory cap of 1.0 kB; the "
                     "largest holders: a (900 B)");
  REQUIRE(account->live() == 900);
  REQUIRE(at::empty({100}, at::kByte).defined());
}

TEST_CASE("a handed-over tensor changes accounts") {
  auto sender = MemoryAccount::make(0), receiver = MemoryAccount::make(0);
  Holder& from = sender->holder("sent");
  Holder& to = receiver->holder("received");
  at::Tensor x;
  {
    HolderScope scope(&from);
    x = at::arange(50, at::kDouble);
  }
  SECTION("that the sender has dropped: its memory goes along") {
    void* data = x.data_ptr();
    at::Tensor y = take_over(std::move(x), to);
    REQUIRE(y.data_ptr() == data);
    REQUIRE(sender->live() == 0);
    REQUIRE(receiver->live() == 400);
    y.reset();
    REQUIRE(receiver->live() == 0);
  }
  SECTION("that the sender still reads: both pay") {
    at::Tensor y = take_over(x, to);
    REQUIRE(y.data_ptr() == x.data_ptr());
    REQUIRE(y.equal(x));
    REQUIRE(sender->live() == 400);
    REQUIRE(receiver->live() == 400);
    SECTION("the receiver drops it first") {
      y.reset();
      REQUIRE(receiver->live() == 0);
      REQUIRE(sender->live() == 400);
      REQUIRE(x[49].item<double>() == 49);
    }
    SECTION("the sender drops it first") {
      x.reset();
      REQUIRE(y[49].item<double>() == 49);
      y.reset();
      REQUIRE(sender->live() == 0);
      REQUIRE(receiver->live() == 0);
    }
  }
  SECTION("a cap is the receiver's") {
    auto small = MemoryAccount::make(399);
    REQUIRE_THROWS_AS(take_over(std::move(x), small->holder("received")), c10::OutOfMemoryError);
    REQUIRE(small->live() == 0);
  }
}

TEST_CASE("bytes are written for people") {
  REQUIRE(format_bytes(0) == "0 B");
  REQUIRE(format_bytes(999) == "999 B");
  REQUIRE(format_bytes(1000) == "1.0 kB");
  REQUIRE(format_bytes(1'250'000) == "1.2 MB");
  REQUIRE(format_bytes(24'000'000'000) == "24.0 GB");
  REQUIRE(format_bytes(5'000'000'000'000) == "5.0 TB");
}

} // namespace piper::executor
