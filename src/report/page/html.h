#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mnist_train::report {

/// Text for HTML, in elements and in quoted attributes alike: &, <, >, quotes as entities, bytes
/// that are not UTF-8 and control characters as U+FFFD.
std::string escape_html(std::string_view text);

/// "99.05 %"; "–" for what is not a number, as everywhere below.
std::string percent(double share, int digits = 2);
/// "0.12 s", "78.7 s", "21 min 5 s", "3 h 12 min".
std::string duration(double seconds);
/// "12.3 ms", "1.25 s".
std::string short_duration(double seconds);
/// Four significant digits: "0.03174", "1.2e-05".
std::string decimal(double value);
/// "323 MB", in powers of 1000.
std::string byte_size(double bytes);
/// "10,574", rounded.
std::string count(double number);
/// "2026-01-31 12:00:00 UTC" of seconds since 1970.
std::string date_and_time(double seconds);

}  // namespace mnist_train::report
