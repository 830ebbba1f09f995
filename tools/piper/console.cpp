#include "tools/piper/console.h"

#include "tools/piper/numbers.h"

#include <fmt/format.h>

#include <cstdio>
#include <unistd.h>

namespace piper::cli {

namespace {
constexpr int kBarWidth = 24;
constexpr double kSmoothing = 0.1;
constexpr const char* kClearLine = "\r\033[K";
} // namespace

Console::Console(bool verbose) : verbose_(verbose), terminal_(isatty(STDOUT_FILENO)) {}

Console::~Console() {
  if (bar_shown_)
    std::fputs("\n", stdout);
  std::fflush(stdout);
}

LogSink Console::log_sink() {
  if (!verbose_)
    return {};
  return [this](LogLevel level, const std::string& text) {
    std::lock_guard lock(mutex_);
    clear_bar();
    fmt::print(stderr, "piper: {}{}\n", level == LogLevel::Error ? "error: " : "", text);
  };
}

void Console::progress(const StepResult& step, int64_t total) {
  std::lock_guard lock(mutex_);
  if (!terminal_) {
    fmt::print("iteration {}  loss {:.9g}  {:.0f} tokens/s{}\n", step.iteration, step.loss,
               step.tokens_per_second,
               step.eval_loss ? fmt::format("  held-out loss {:.9g}", *step.eval_loss) : "");
    std::fflush(stdout);
    return;
  }
  seconds_per_iteration_ = seconds_per_iteration_ == 0 ? step.seconds
                                                       : seconds_per_iteration_ * (1 - kSmoothing) +
                                                             step.seconds * kSmoothing;
  const int64_t done = step.iteration + 1;
  const auto filled = static_cast<size_t>(done * kBarWidth / total);
  fmt::print("{}[{}{}] {}/{}  loss {:.4f}  {:.0f} tokens/s  {} left", kClearLine,
             std::string(filled, '#'), std::string(kBarWidth - filled, '-'), done, total, step.loss,
             step.tokens_per_second,
             human_duration(seconds_per_iteration_ * static_cast<double>(total - done)));
  bar_shown_ = done < total;
  if (!bar_shown_)
    std::fputs("\n", stdout);
  std::fflush(stdout);
}

void Console::line(const std::string& text) {
  std::lock_guard lock(mutex_);
  clear_bar();
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void Console::clear_bar() {
  if (bar_shown_)
    std::fputs(kClearLine, stdout);
  bar_shown_ = false;
  std::fflush(stdout);
}

} // namespace piper::cli
