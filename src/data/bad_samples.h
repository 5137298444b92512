#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace mnist_train::data {

/// Collects what is wrong with single samples: the first one is an Error, or all of them are listed
/// and left out.
class BadSamples {
 public:
  explicit BadSamples(bool skip) : skip_(skip) {}

  bool skips() const { return skip_; }
  /// Takes a message that begins with the sample's name. Throws Error(kData) with it unless bad
  /// samples are skipped.
  void add(const std::string& message) {
    if (!skip_) throw Error(ExitCode::kData, message);
    skipped_.push_back(message);
  }
  const std::vector<std::string>& skipped() const { return skipped_; }

 private:
  bool skip_;
  std::vector<std::string> skipped_;
};

}  // namespace mnist_train::data
