#pragma once

#include <functional>
#include <memory>

#include "accelerator/device.h"
#include "models/model.h"
#include "train/batch_partition.h"

namespace mnist_train::train {

/// Makes a new model of the run's kind on the CPU, with its initial weights.
using ModelFactory = std::function<std::shared_ptr<models::Model>()>;

/// What a trainer is built from, beside the options.
struct TrainerSetup {
  ModelFactory make_model;
  /// Computes in bf16, on images of that type; weights, optimizer and statistics stay fp32.
  bool bf16 = false;
  at::Device device = at::kCPU;
  PartitionOptions partition{};
  /// Makes what captures the step, unless something is in the way; null: the step stays eager.
  accelerator::GraphFactory make_graph{};
};

}  // namespace mnist_train::train
