#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/image_set.h"

namespace mnist_train::data {

/// A training and a test set of one geometry and one number of classes, what is held out of the
/// training set, and a hash of all samples, which resume and the summary use. A split that was not
/// asked for is empty.
struct Dataset {
  ImageSet train;
  ImageSet validation;  // empty unless data.validation holds samples out
  ImageSet test;
  std::string hash;                         // see hash_of
  std::vector<std::string> class_names{};   // by number, where the data have names
  std::vector<std::string> skipped{};       // bad samples that were left out, with the reason
  std::vector<std::int64_t> train_parts{};  // samples of each set of train_per_process, in order
};

/// Hashes the samples of all splits, in the order above: their pixels and labels, or the names,
/// sizes and labels of those that are decoded as they are used. Returns "xxh3-128:<32 hex digits>".
std::string hash_of(const Dataset& dataset);

}  // namespace mnist_train::data
