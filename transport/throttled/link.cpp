#include "transport/throttled/link.h"

#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <initializer_list>
#include <optional>
#include <string>

namespace piper::transport {
namespace {

/// "1.5ms" with the units {"ms", 1e-3}, …: 1.5e-3. None if it is anything else.
std::optional<double>
parse_quantity(std::string_view text,
               std::initializer_list<std::pair<std::string_view, double>> units) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number >= 0))
    return std::nullopt;
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  for (const auto& [name, factor] : units)
    if (unit == name)
      return number * factor;
  return std::nullopt;
}

} // namespace

Result<Link> parse_link(std::string_view text) {
  const auto wrong = [&](std::string_view what) {
    return user_error(fmt::format("cannot read the {} of the link \"{}\"", what, text), "link",
                      "give a latency and a bandwidth, such as 50us,1GB/s");
  };
  const size_t comma = text.find(',');
  const auto latency =
      parse_quantity(text.substr(0, comma), {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}});
  if (!latency || *latency > 3600)
    return wrong("latency");
  if (comma == std::string_view::npos)
    return wrong("bandwidth");
  const auto bandwidth = parse_quantity(text.substr(comma + 1),
                                        {{"B/s", 1}, {"KB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}});
  if (!bandwidth || *bandwidth < 1)
    return wrong("bandwidth");
  return Link{std::chrono::nanoseconds(std::llround(*latency * 1e9)), *bandwidth};
}

Deadline Port::reserve(Deadline now, uint64_t bytes, int crossings) {
  free_at_ = std::max(free_at_, now);
  if (link_.bandwidth > 0)
    free_at_ += std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(static_cast<double>(bytes) / link_.bandwidth));
  return free_at_ + crossings * link_.latency;
}

} // namespace piper::transport
