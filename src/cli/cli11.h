#pragma once

/// The parser's class, for headers that need no more of CLI11 than its name.
namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
}  // namespace CLI
