#include "models/external_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <spdlog/spdlog.h>

#include <map>
#include <sstream>

#include "base/error.h"

namespace mnist_train::models {

namespace {

std::string text_of(at::IntArrayRef sizes) {
  std::ostringstream text;
  text << sizes;
  return text.str();
}

/// Returns the reasons why parameters cannot be trained, one per line.
std::string untrainable(const torch::OrderedDict<std::string, at::Tensor>& parameters) {
  std::string found;
  std::map<const void*, std::string> names;
  for (const auto& item : parameters) {
    const at::Tensor& tensor = item.value();
    const auto add = [&](const std::string& what) { found += "\n  " + item.key() + " " + what; };
    if (tensor.scalar_type() != at::kFloat) {
      add(std::string("is ") + c10::toString(tensor.scalar_type()) + ", expected Float");
    } else if (!tensor.requires_grad()) {
      add("has requires_grad false; make a constant tensor a buffer");
    }
    if (tensor.numel() == 0) continue;
    const auto [first, is_new] = names.emplace(tensor.const_data_ptr(), item.key());
    if (!is_new) add("shares its memory with " + first->second);
  }
  return found;
}

}  // namespace

std::string cause_of(const std::exception& error) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = from_torch != nullptr ? from_torch->what_without_backtrace() : error.what();
  spdlog::debug("{}", text);
  // Messages of the interpreter begin with stack traces and end with the message thrown.
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const bool has_traces = text.starts_with("The following operation failed");
  return has_traces ? text.substr(text.rfind('\n') + 1) : text.substr(0, text.find('\n'));
}

void ExternalModel::refuse(const std::string& message) const {
  throw ConfigKeyError(source_ + ": " + message);
}

at::Tensor ExternalModel::forward(const at::Tensor& images) {
  try {
    return compute(images);
  } catch (const c10::Error&) {
    throw;  // its type says whether a restart may help
  } catch (const std::exception& error) {
    throw Error(ExitCode::kRunFailed, source_ + ": forward failed: " + cause_of(error));
  }
}

void ExternalModel::compute_in_bfloat16() {
  Model::compute_in_bfloat16();
  try_forward(at::kBFloat16, "; set precision to fp32");
}

void ExternalModel::require_usable() {
  require_trainable();
  try_forward(at::kFloat, "");
}

void ExternalModel::require_trainable() const {
  const auto parameters = named_parameters();
  if (parameters.is_empty()) {
    refuse("has no parameters to train (torch.jit.freeze makes constants of them)");
  }
  const std::string wrong = untrainable(parameters);
  if (!wrong.empty()) refuse("has parameters that cannot be trained:" + wrong);
}

/// `advice` follows the description of a failure.
void ExternalModel::try_forward(at::ScalarType type, const std::string& advice) {
  const at::NoGradGuard no_grad;
  const std::vector<std::int64_t> sizes{2, shape_.channels, shape_.height, shape_.width};
  const std::string images =
      std::string("images ") + text_of(sizes) + " of type " + c10::toString(type);
  eval();
  at::Tensor logits;
  try {
    logits = compute(at::zeros(sizes, type));
  } catch (const std::exception& error) {
    refuse("forward fails on " + images + advice + ": " + cause_of(error));
  }
  const std::vector<std::int64_t> expected{2, shape_.classes};
  if (!logits.defined() || logits.sizes() != expected) {
    refuse("forward makes " + (logits.defined() ? text_of(logits.sizes()) : "no tensor") + " of " +
           images + ", expected logits " + text_of(expected));
  }
  if (!logits.is_floating_point()) {
    refuse(std::string("forward returns logits of type ") + c10::toString(logits.scalar_type()) +
           ", expected floating-point numbers");
  }
  train();
}

}  // namespace mnist_train::models
