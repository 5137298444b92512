#pragma once

// Catch2, version 2 or 3, whichever is installed. LibTorch defines CHECK too: tests that use it
// include it first, and Catch2's meaning wins here.

#ifdef CHECK
#undef CHECK
#endif

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <catch2/matchers/catch_matchers_vector.hpp>
#else
#include <catch2/catch.hpp>

namespace Catch::Matchers {
/// Version 3's name of version 2's matcher of strings.
inline auto ContainsSubstring(
    const std::string& text,
    CaseSensitive::Choice case_sensitivity = CaseSensitive::Choice::Yes) {
  return Contains(text, case_sensitivity);
}
}  // namespace Catch::Matchers
#endif
