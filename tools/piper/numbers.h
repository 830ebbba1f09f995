// Figures for people.
#pragma once

#include <string>
#include <vector>

namespace piper::cli {

/// The mean of the two in the middle of an even number; 0 of none.
double median(std::vector<double> values);
/// "3.4 MB", "512 B"
std::string human_bytes(double bytes);
/// "1:02:03", "0:12"
std::string human_duration(double seconds);

} // namespace piper::cli
