#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace mnist_train {

/// Counts the nodes of a tensor's autograd graph whose names contain `name`.
inline std::int64_t count_operations(const at::Tensor& computed, const std::string& name) {
  std::set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> left{computed.grad_fn().get()};
  std::int64_t count = 0;
  while (!left.empty()) {
    const auto* const node = left.back();
    left.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (node->name().find(name) != std::string::npos) ++count;
    for (const auto& edge : node->next_edges()) left.push_back(edge.function.get());
  }
  return count;
}

}  // namespace mnist_train
