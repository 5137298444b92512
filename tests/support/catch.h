#pragma once

// Includes the installed Catch2, version 2 or 3, and standard headers that most tests need.
// LibTorch also defines CHECK: include LibTorch's headers first, so that Catch2's definition wins.

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

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

using Catch::Approx;  // global in version 2

namespace mnist_train::testing {
using Catch::Approx;
}  // namespace mnist_train::testing
#else
#include <catch2/catch.hpp>

namespace mnist_train::testing {
using Approx = Catch::Detail::Approx;
}  // namespace mnist_train::testing

// Defines version 3's names in version 2.
namespace Catch {

using Detail::Approx;

namespace Matchers {

using Impl::MatcherBase;

inline auto ContainsSubstring(const std::string& text,
                              CaseSensitive::Choice case_sensitivity = CaseSensitive::Choice::Yes) {
  return Contains(text, case_sensitivity);
}

}  // namespace Matchers
}  // namespace Catch
#endif

namespace mnist_train::testing {
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
}  // namespace mnist_train::testing
