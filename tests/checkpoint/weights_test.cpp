#include "checkpoint/weights.h"

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "base/file.h"
#include "support/catch.h"
#include "support/damage.h"
#include "support/error_of.h"
#include "support/temp_folder.h"
#include "support/trainer_rig.h"

namespace mnist_train::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using testing::error_of;
using testing::Failure;
using testing::IsError;
using testing::TempFolder;
using testing::tiny_model;

bool same(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].first != b[i].first || !a[i].second.equal(b[i].second)) return false;
  }
  return true;
}

NamedTensors without(NamedTensors weights, const std::string& name) {
  std::erase_if(weights, [&](const auto& item) { return item.first == name; });
  return weights;
}

TEST_CASE("a state_dict has parameters and buffers by PyTorch's names, in their order") {
  const NamedTensors weights = state_dict(*tiny_model(1, /*with_batch_norm=*/true));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : weights) names.push_back(name);
  CHECK(names == std::vector<std::string>{"conv.weight", "conv.bias", "norm.weight", "norm.bias",
                                          "norm.running_mean", "norm.running_var",
                                          "norm.num_batches_tracked", "fc.weight", "fc.bias"});
  CHECK(weights[6].second.scalar_type() == at::kLong);
}

TEST_CASE("a state_dict is a contiguous copy in fp32, even of parameters in one buffer") {
  const auto model = tiny_model(1);
  const train::FlatParameters flat(*model, 0);
  const NamedTensors weights = state_dict(*model);
  const NamedTensors before = state_dict(*tiny_model(1));
  CHECK(same(weights, before));
  flat.values().zero_();
  CHECK(same(weights, before));
  for (const auto& [name, tensor] : weights) {
    CHECK(tensor.is_contiguous());
    CHECK(tensor.storage().nbytes() == tensor.nbytes());
    CHECK_FALSE(tensor.requires_grad());
  }
  const auto wide = tiny_model(1);
  wide->to(at::kDouble);
  CHECK(state_dict(*wide).front().second.scalar_type() == at::kFloat);
}

TEST_CASE("weights are loaded in place into parameters that share one buffer") {
  const auto model = tiny_model(1, true);
  const train::FlatParameters flat(*model, 0);
  const auto source = tiny_model(2, true);
  NamedTensors weights = state_dict(*source);
  std::reverse(weights.begin(), weights.end());  // their order does not matter
  load_state_dict(*model, weights, "file");
  CHECK(same(state_dict(*model), state_dict(*source)));
  const train::FlatParameters flat_source(*source, 0);
  CHECK(flat.values().equal(flat_source.values()));
}

TEST_CASE("all missing, unexpected and resized tensors are listed, the model unchanged") {
  const auto model = tiny_model(1, true);
  NamedTensors weights = state_dict(*tiny_model(2, true));
  weights = without(without(weights, "conv.bias"), "norm.num_batches_tracked");
  for (auto& [name, tensor] : weights) {
    if (name == "fc.weight") tensor = at::zeros({10, 7});
    if (name == "norm.running_var") tensor = at::zeros({});
  }
  weights.emplace_back("extra.one", at::zeros({2, 2}));
  weights.emplace_back("extra.two", at::zeros({}));
  const Failure failure = error_of([&] { load_state_dict(*model, weights, "the/file.pt"); });
  CHECK(failure.code == ExitCode::kCheckpoint);
  for (const char* part : {"the/file.pt: does not fit the model", "missing: conv.bias [3]",
                           "missing: norm.num_batches_tracked []",
                           "size mismatch: fc.weight is [10, 7], expected [10, 432]",
                           "size mismatch: norm.running_var is [], expected [3]",
                           "unexpected: extra.one [2, 2]", "unexpected: extra.two []"}) {
    CHECK_THAT(failure.message, ContainsSubstring(part));
  }
  CHECK(same(state_dict(*model), state_dict(*tiny_model(1, true))));
}

TEST_CASE("of many different tensors the first are described and all are named") {
  NamedTensors weights;
  for (int i = 0; i < 44; ++i) weights.emplace_back("extra." + std::to_string(i), at::zeros({i}));
  const std::string text = differences(NamedTensors{}, weights);
  CHECK(std::count(text.begin(), text.end(), '\n') == 11);
  CHECK_THAT(text,
             ContainsSubstring("\n  unexpected: extra.9 [9]\n  unexpected: 34 more: extra.10, "));
  CHECK(text.ends_with(", extra.42, extra.43"));
}

TEST_CASE("prefixes of DistributedDataParallel and torch.compile are removed") {
  const TempFolder folder;
  const NamedTensors weights = state_dict(*tiny_model(1));
  for (const std::string prefix : {"module.", "_orig_mod.", "module._orig_mod.",
                                   "_orig_mod.module.", "_orig_mod.module._orig_mod."}) {
    NamedTensors wrapped = weights;
    for (auto& [name, tensor] : wrapped) name.insert(0, prefix);
    write_weights(folder.path() / "wrapped.pt", wrapped, WeightsFormat::kPt);
    CHECK(same(read_weights(folder.path() / "wrapped.pt"), weights));
  }
  NamedTensors mixed = weights;
  mixed[0].first.insert(0, "module.");
  write_weights(folder.path() / "mixed.pt", mixed, WeightsFormat::kPt);
  CHECK(same(read_weights(folder.path() / "mixed.pt"), mixed));
}

TEST_CASE("weights that are not finite are refused with the tensor's name") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto model = tiny_model(1, true);
  CHECK_NOTHROW(require_finite(*model, "the/file.pt"));
  for (const auto& [name, tensor] : state_dict(*model)) {
    if (!tensor.is_floating_point()) continue;
    for (const float value : {std::nanf(""), kInfinity, -kInfinity}) {
      const bool is_buffer = name.find("running") != std::string::npos;
      if (is_buffer && std::isinf(value)) continue;
      NamedTensors weights = state_dict(*tiny_model(1, true));
      find_named(weights, name)->view(-1)[-1] = value;
      load_state_dict(*model, weights, "the/file.pt");
      CHECK_THAT(error_of([&] { require_finite(*model, "the/file.pt"); }),
                 IsError(ExitCode::kCheckpoint, "the/file.pt: tensor " + name + " has values"));
    }
  }
}

TEST_CASE("torch.save's old format is recognised") {
  const TempFolder folder;
  const fs::path path =
      folder.write("old.pt", "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.");
  for (const auto& read : {+[](const fs::path& file) { (void)read_weights(file); },
                           +[](const fs::path& file) { (void)facts_of(file); }}) {
    CHECK_THAT(error_of([&] { read(path); }).message,
               ContainsSubstring("PyTorch before 1.6") && ContainsSubstring("convert it"));
  }
}

TEST_CASE("the content tells the format of a file, not its name") {
  const TempFolder folder;
  const NamedTensors weights = state_dict(*tiny_model(3));
  write_weights(folder.path() / "a.safetensors", weights, WeightsFormat::kPt);
  write_weights(folder.path() / "b.pt", weights, WeightsFormat::kSafetensors);
  testing::TrainerRig rig(testing::small_run(), testing::one_rank(), tiny_model(3));
  write_safetensors(folder.path() / "c", snapshot(rig.trainer, {"{}", "hash", 1, 0, 0, 0, {}}),
                    /*seal=*/true);
  for (const char* name : {"a.safetensors", "b.pt", "c"}) {
    INFO(name);
    CHECK(same(read_weights(folder.path() / name), weights));
  }
}

TEST_CASE("a checkpoint with any flipped bit in its header gives no weights") {
  const TempFolder folder;
  testing::TrainerRig rig(testing::small_run());
  const fs::path path = folder.path() / "checkpoint";
  write_safetensors(path, snapshot(rig.trainer, {"{}", "hash", 1, 0, 0, 0, {}}), /*seal=*/true);
  std::uint64_t header_bytes = 0;
  const std::string bytes = read_file(path, 1 << 24, ExitCode::kData);
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  for (std::size_t byte = 0; byte < sizeof header_bytes + header_bytes; ++byte) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      testing::flip_bit(path, byte, bit);
      const Failure failure = error_of([&] { read_weights(path); });
      testing::flip_bit(path, byte, bit);
      INFO("bit " << bit << " of byte " << byte);
      REQUIRE(failure.code == ExitCode::kCheckpoint);
    }
  }
  CHECK(read_weights(path).size() == 4);
}

}  // namespace
}  // namespace mnist_train::checkpoint
