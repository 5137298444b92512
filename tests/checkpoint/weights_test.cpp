#include <cmath>
#include <limits>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "support/damage.h"
#include "support/error_of.h"
#include "support/layers.h"
#include "support/peak_memory.h"
#include "support/temp_folder.h"
#include "support/trainer_rig.h"

namespace mnist_train::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using namespace testing;

bool same(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].first != b[i].first || !a[i].second.equal(b[i].second)) return false;
  }
  return true;
}

NamedTensors with_prefix(const std::string& prefix, NamedTensors weights) {
  for (auto& [name, tensor] : weights) name.insert(0, prefix);
  return weights;
}

/// Returns the weights, with tensor `name` replaced by a tensor of ones with these sizes.
NamedTensors resized(NamedTensors weights, const std::string& name,
                     const std::vector<std::int64_t>& sizes) {
  for (auto& [key, tensor] : weights) {
    if (key == name) tensor = at::ones(sizes);
  }
  return weights;
}

NamedTensors without(NamedTensors weights, const std::string& name) {
  std::erase_if(weights, [&](const auto& item) { return item.first == name; });
  return weights;
}

TEST_CASE("a state_dict has parameters and buffers with PyTorch's names and in PyTorch's order") {
  const NamedTensors weights = state_dict(*tiny_model(1, /*with_batch_norm=*/true));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : weights) names.push_back(name);
  CHECK(names == std::vector<std::string>{"conv.weight", "conv.bias", "norm.weight", "norm.bias",
                                          "norm.running_mean", "norm.running_var",
                                          "norm.num_batches_tracked", "fc.weight", "fc.bias"});
  CHECK(weights[6].second.scalar_type() == at::kLong);
}

TEST_CASE("a state_dict is a contiguous fp32 copy, even of parameters that share one buffer") {
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
  std::reverse(weights.begin(), weights.end());  // the order does not matter
  copy_tensors(model_tensors(*model), weights);
  CHECK(same(state_dict(*model), state_dict(*source)));
  const train::FlatParameters flat_source(*source, 0);
  CHECK(flat.values().equal(flat_source.values()));
}

TEST_CASE("all missing, unexpected and resized tensors are listed") {
  const auto model = tiny_model(1, true);
  NamedTensors weights = resized(state_dict(*tiny_model(2, true)), "fc.weight", {10, 7});
  weights = without(without(weights, "conv.bias"), "norm.num_batches_tracked");
  weights = resized(weights, "norm.running_var", {});
  weights.emplace_back("extra.one", at::zeros({2, 2}));
  weights.emplace_back("extra.two", at::zeros({}));
  const std::string text = differences(model_tensors(*model), weights);
  for (const char* part : {"missing: conv.bias [3]", "missing: norm.num_batches_tracked []",
                           "size mismatch: fc.weight is [10, 7], expected [10, 432]",
                           "size mismatch: norm.running_var is [], expected [3]",
                           "unexpected: extra.one [2, 2]", "unexpected: extra.two []"}) {
    CHECK_THAT(text, ContainsSubstring(part));
  }
}

TEST_CASE("all differences are listed by kind, even if there are many") {
  NamedTensors expected;
  NamedTensors found;
  std::string lists[3];
  for (int i = 0; i < 100; ++i) {
    const std::string number = std::to_string(i);
    expected.emplace_back("absent." + number, at::zeros({i}));
    lists[0] += "\n  missing: absent." + number + " [" + number + "]";
    expected.emplace_back("layer." + number, at::zeros({1}));
    found.emplace_back("layer." + number, at::zeros({2}));
    lists[1] += "\n  size mismatch: layer." + number + " is [2], expected [1]";
    found.emplace_back("extra." + number, at::zeros({}));
    lists[2] += "\n  unexpected: extra." + number + " []";
  }
  CHECK(differences(expected, found) == lists[0] + lists[1] + lists[2]);
}

TEST_CASE("prefixes of DistributedDataParallel and torch.compile are removed") {
  const TempFolder folder;
  const NamedTensors weights = state_dict(*tiny_model(1));
  for (const std::string prefix : {"module.", "_orig_mod.", "module._orig_mod.",
                                   "_orig_mod.module.", "_orig_mod.module._orig_mod."}) {
    write_weights(folder.path() / "wrapped.pt", with_prefix(prefix, weights),
                  /*as_safetensors=*/false);
    CHECK(same(read_weights(folder.path() / "wrapped.pt"), weights));
  }
  NamedTensors mixed = weights;
  mixed[0].first.insert(0, "module.");
  write_weights(folder.path() / "mixed.pt", mixed, /*as_safetensors=*/false);
  CHECK(same(read_weights(folder.path() / "mixed.pt"), mixed));
}

Failure reading_weights(const fs::path& path) {
  return error_of([&] { (void)read_weights(path); });
}

constexpr network::ImageShape kImages{1, 16, 16, 10};

/// Weights that differ from the initial weights of the models in these tests.
NamedTensors other_weights() { return state_dict(*tiny_model(2, true)); }

fs::path write(const TempFolder& folder, const NamedTensors& weights) {
  const fs::path path = folder.path() / "weights.safetensors";
  write_weights(path, weights, /*as_safetensors=*/true);
  return path;
}

/// Returns the state_dict of a model from which a run would start, given these weights.
NamedTensors started(const NamedTensors& file, const std::vector<std::string>& fresh = {}) {
  const TempFolder folder;
  const auto model = tiny_model(1, true);
  load_weights(*model, {write(folder, file), fresh}, kImages, /*starts_run=*/true);
  return state_dict(*model);
}

/// Loads weights into a model without starting a run; returns the error.
Failure loading(const fs::path& path) {
  return error_of([&] { load_weights(*tiny_model(1, true), {path, {}}, kImages); });
}

std::string refusal(const NamedTensors& file, const std::vector<std::string>& fresh = {},
                    const network::ImageShape& images = kImages) {
  const TempFolder folder;
  const fs::path path = write(folder, file);
  const auto model = tiny_model(1, true);
  const NamedTensors before = state_dict(*model);
  const Failure failure = error_of([&] {
    load_weights(*model, {path, fresh}, images, /*starts_run=*/true);
  });
  std::string message = failure.message;
  CHECK(failure.code ==
        (message.starts_with("/model/") ? ExitCode::kConfig : ExitCode::kCheckpoint));
  CHECK(same(state_dict(*model), before));
  for (std::size_t at = 0; (at = message.find(path.string())) != std::string::npos;) {
    message.replace(at, path.string().size(), "FILE");
  }
  return message;
}

TEST_CASE("weights are found under the prefixes of wrappers, among other tensors") {
  for (const std::string prefix :
       {"", "module.", "_orig_mod.", "model.", "module._orig_mod.", "model.module._orig_mod."}) {
    INFO(prefix);
    CHECK(same(started(with_prefix(prefix, other_weights())), other_weights()));
  }
  NamedTensors among_others = with_prefix("model.", other_weights());
  among_others.emplace_back("n_averaged", at::zeros({}, at::kLong));
  among_others.emplace_back("loss.weight", at::ones({10}));
  CHECK(same(started(among_others), other_weights()));
  // If a file has two networks, the one with a known prefix is loaded.
  NamedTensors two = with_prefix("ema_model.", state_dict(*tiny_model(3, true)));
  for (auto& item : with_prefix("model.", other_weights())) two.push_back(item);
  CHECK(same(started(two), other_weights()));
  CHECK_THAT(refusal(with_prefix("net.body.", other_weights())),
             ContainsSubstring("\nits names begin with \"net.body.\"; rename them in Python: ") &&
                 ContainsSubstring("missing: conv.weight [3, 1, 5, 5]") &&
                 ContainsSubstring("unexpected: net.body.conv.weight"));
  // The head was replaced after the model was wrapped.
  NamedTensors mixed = with_prefix("module.", other_weights());
  for (auto& [name, tensor] : mixed) {
    if (name.starts_with("module.fc.")) name.erase(0, 7);
  }
  CHECK(same(started(mixed), other_weights()));
  mixed.emplace_back("conv.weight", at::zeros({3, 1, 5, 5}));
  CHECK(same(started(mixed), other_weights()));
}

TEST_CASE("prefixes are removed even if only some names have them") {
  for (const std::string prefix : {"module.", "_orig_mod.", "model.module."}) {
    for (const std::size_t first : {0U, 1U}) {
      INFO(prefix << first);
      NamedTensors file = other_weights();
      for (std::size_t i = first; i < file.size(); i += 2) file[i].first.insert(0, prefix);
      CHECK(same(started(file), other_weights()));
      file[0].first = "module." + other_weights()[0].first;
      CHECK(same(started(file), other_weights()));
    }
  }
  NamedTensors usual = with_prefix("module.", other_weights());
  usual.emplace_back("_orig_mod.fc.bias", at::zeros({10}));
  CHECK(same(started(usual), other_weights()));
  // Either of the two could be the model's.
  NamedTensors two = without(other_weights(), "fc.bias");
  two.emplace_back("module.fc.bias", at::zeros({10}));
  two.emplace_back("model.fc.bias", at::zeros({10}));
  CHECK_THAT(refusal(two), ContainsSubstring("\n  missing: fc.bias [10]\n  unexpected: "
                                             "module.fc.bias [10]\n  unexpected: model.fc.bias"));
}

TEST_CASE("prefixes with which the model's own names begin are not removed") {
  const TempFolder folder;
  const network::ImageShape images{1, 4, 4, 2};
  settings::ModelOptions options;
  options.layers = settings::LayerList{layer::flatten(),
                                       {"model", settings::LinearLayer{3, true, {}}},
                                       {"fc", settings::LinearLayer{2, true, {}}}};
  const auto model = models::make_model(options, images, 1);
  const NamedTensors weights = state_dict(*models::make_model(options, images, 2));
  NamedTensors file = weights;
  file.back().first = "module.fc.bias";
  load_weights(*model, {write(folder, file), {}}, images);
  CHECK(same(state_dict(*model), weights));
  file.back().first = "model.fc.bias";
  CHECK_THAT(error_of([&] {
               load_weights(*model, {write(folder, file), {}}, images);
             }),
             IsError(ExitCode::kCheckpoint, "missing: fc.bias [2]", "unexpected: model.fc.bias"));
}

TEST_CASE("the error about images with other channels names the key to set") {
  const network::ImageShape gray{1, 64, 64, 10};
  const network::ImageShape colour{3, 64, 64, 10};
  const auto name = settings::ModelName::kTorchvisionResNet18;
  const auto loading_into = [&](const network::ImageShape& own, NamedTensors file) {
    const TempFolder folder;
    const auto model = built_in_model(name, 1, own);
    return error_of([&] {
             load_weights(*model, {write(folder, file), {}}, own, /*starts_run=*/true);
           })
        .message;
  };
  const NamedTensors published = state_dict(*built_in_model(name, 2, colour));
  CHECK_THAT(loading_into(colour, state_dict(*built_in_model(name, 2, gray))),
             ContainsSubstring("\nset data.channels to 1, as for these weights\ndifferences:\n  "
                               "size mismatch: conv1.weight is"));
  CHECK_THAT(
      loading_into(gray, resized(published, "fc.bias", {7})),
      ContainsSubstring("set data.channels to 3, as for these weights\nto train a new head"));
  CHECK_THAT(loading_into(gray, without(published, "bn1.bias")),
             !ContainsSubstring("data.channels"));
}

TEST_CASE("without num_batches_tracked in the file, the count is 0") {
  const NamedTensors loaded = started(without(other_weights(), "norm.num_batches_tracked"));
  CHECK(find_named(loaded, "norm.num_batches_tracked")->item<std::int64_t>() == 0);
  CHECK(find_named(loaded, "fc.bias")->equal(*find_named(other_weights(), "fc.bias")));
}

TEST_CASE("tensors listed in `new` keep their initial values, whatever the file contains") {
  const NamedTensors initial = state_dict(*tiny_model(1, true));
  const NamedTensors file = other_weights();
  const NamedTensors other_head = without(resized(file, "fc.weight", {1000, 512}), "fc.bias");
  struct Case {
    std::vector<std::string> fresh;
    std::vector<std::string> names;
  };
  for (const auto& [fresh, names] : std::vector<Case>{
           {{"head"}, {"fc.weight", "fc.bias"}},
           {{"fc.*"}, {"fc.weight", "fc.bias"}},
           {{"head", "norm.running_*"},
            {"fc.weight", "fc.bias", "norm.running_mean", "norm.running_var"}},
           {{"*.bias", "f?.w*", "fc.bias"}, {"conv.bias", "norm.bias", "fc.bias", "fc.weight"}}}) {
    INFO(fresh.front());
    for (const NamedTensors& weights : {file, other_head, with_prefix("module.", other_head)}) {
      for (const auto& [name, tensor] : started(weights, fresh)) {
        INFO(name);
        const bool is_fresh = std::ranges::find(names, name) != names.end();
        CHECK(tensor.equal(*find_named(is_fresh ? initial : file, name)));
      }
    }
  }
}

TEST_CASE("a glob in `new` that matches nothing is a config error") {
  CHECK(
      refusal(other_weights(), {"haed.*", "fc.*"}) ==
      "/model/weights/new: \"haed.*\" matches no parameter; the network has conv.*, norm.*, fc.*");
  CHECK(refusal(other_weights(), {"nrom.*"}) ==
        "/model/weights/new: \"nrom.*\" matches no parameter; did you mean \"norm.*\"?");
  CHECK_THAT(refusal(other_weights(), {"head"}, {1, 16, 16, 6}),
             ContainsSubstring("the last parameter, fc.bias [10], which does not have 6 outputs"));
}

TEST_CASE("the error about weights for different classes has the config line for a new head") {
  const NamedTensors file =
      resized(resized(other_weights(), "fc.weight", {1000, 432}), "fc.bias", {1000});
  const std::string head =
      "\nto train a new head, set in \"model\": \"weights\": "
      "{\"file\":\"FILE\",\"new\":\"head\"}";
  CHECK_THAT(refusal(file), ContainsSubstring("size mismatch: fc.weight is [1000, 432], expected "
                                              "[10, 432]") &&
                                ContainsSubstring(head + "\n"));
  CHECK_THAT(refusal(without(file, "norm.bias")), !ContainsSubstring("new head"));
  const TempFolder folder;
  CHECK_THAT(loading(write(folder, file)).message, !ContainsSubstring("new head"));
}

TEST_CASE("weights of another built-in network are refused, and the error names it") {
  for (const auto name :
       {settings::ModelName::kMlp, settings::ModelName::kTorchvisionMobileNetV2}) {
    const network::ImageShape images = name == settings::ModelName::kMlp
                                           ? network::ImageShape{1, 28, 28, 10}
                                           : network::ImageShape{3, 64, 64, 7};
    const NamedTensors file = state_dict(*built_in_model(name, 1, images));
    CHECK_THAT(
        refusal(with_prefix("module.", file), {}, {1, 28, 28, 10}),
        ContainsSubstring("\nthese look like weights of " + settings::name_of(name) +
                          "; set \"model\": {\"name\": \"" + settings::name_of(name) + "\"}\n"));
  }
  CHECK_THAT(refusal({{"some.weight", at::ones({2})}}), !ContainsSubstring("look like weights"));
  // ResNet-34 has all tensors of ResNet-18 except the head.
  const network::ImageShape images{3, 64, 64, 7};
  const auto model = built_in_model(settings::ModelName::kTorchvisionResNet18, 1, images);
  const auto larger = built_in_model(settings::ModelName::kTorchvisionResNet34, 1, images);
  const TempFolder folder;
  const fs::path file = write(folder, state_dict(*larger));
  for (const std::vector<std::string>& fresh : {std::vector<std::string>{}, {"head"}}) {
    CHECK_THAT(error_of([&] {
                 load_weights(*model, {file, fresh}, images);
               }),
               IsError(ExitCode::kCheckpoint, "look like weights of torchvision-resnet34",
                       "\n  unexpected: layer"));
  }
}

/// A safetensors file whose first tensor has an unknown type.
fs::path write_with_float8(const TempFolder& folder, const NamedTensors& weights) {
  const fs::path path = write(folder, weights);
  std::string bytes = read_file(path, 1 << 24, ExitCode::kData);
  bytes.replace(bytes.find("F32"), 3, "F8X");
  return folder.write("float8", bytes);
}

TEST_CASE("a tensor of an unknown type is an error only if the model has it") {
  const TempFolder folder;
  NamedTensors file{{"extra", at::ones({4})}};
  for (const auto& item : other_weights()) file.push_back(item);
  const auto model = tiny_model(1, true);
  load_weights(*model, {write_with_float8(folder, file), {}}, kImages);
  CHECK(same(state_dict(*model), other_weights()));
  const fs::path wanted = write_with_float8(folder, other_weights());
  CHECK_THAT(loading(wanted),
             IsError(ExitCode::kCheckpoint, "float8: conv.weight has the unsupported type F8X"));
  CHECK_THAT(reading_weights(wanted),
             IsError(ExitCode::kCheckpoint, "conv.weight has the unsupported type F8X"));
}

TEST_CASE("a large file that is truncated is refused at once") {
  const TempFolder folder;
  const std::string header = R"({"w":{"dtype":"F32","shape":[1000000000],)"
                             R"("data_offsets":[0,4000000000]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  for (const std::string& begin : {std::string("PK\x03\x04"), length + header}) {
    const fs::path path = folder.write("large", begin);
    fs::resize_file(path, std::uintmax_t{2} << 30);
    reset_peak_memory();
    const std::size_t before = peak_memory();
    const auto start = std::chrono::steady_clock::now();
    CHECK_THAT(reading_weights(path), IsError(ExitCode::kCheckpoint, "truncated"));
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
    CHECK(peak_memory() < before + (std::size_t{16} << 20));
  }
}

TEST_CASE("the error names the type of a file that is not a weights file") {
  const TempFolder folder;
  std::string tar(1024, '\0');
  tar.replace(0, 8, "sys_info").replace(257, 5, "ustar");
  for (const auto& [bytes, reason] : std::vector<std::pair<std::string, std::string>>{
           {tar, "is a tar archive"},
           {"\x80\x04\x95 a pickle", "is a Python pickle"},
           {"\x89HDF\r\n\x1a\n of Keras", "is an HDF5 file"},
           {"\x1f\x8b compressed", "is a gzip-compressed file"},
           {"<!DOCTYPE html>", "is a web page"},
           {"hello, these are weights\r\n", "is a text file, not a torch.save file (.pt, .pth), a"},
           {"text", "is a text file"},
           {"", "is an empty file"},
           {"{\n  \"epochs\": 10}", "is a text file"},
           {"{\"weight_map\": {\"a\": \"1.safetensors\"}}", "index of sharded weights; merge"},
           {std::string("1234567\0 9", 10), "is truncated or not a safetensors file"}}) {
    const fs::path path = folder.write("file.pth", bytes);
    CHECK_THAT(reading_weights(path), IsError(ExitCode::kCheckpoint, "file.pth: ", reason));
  }
}

TEST_CASE("weights that are not finite are refused, and the error names the tensor") {
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
      copy_tensors(model_tensors(*model), weights);
      CHECK_THAT(error_of([&] { require_finite(*model, "the/file.pt"); }),
                 IsError(ExitCode::kCheckpoint, "the/file.pt: tensor " + name + " contains"));
    }
  }
}

TEST_CASE("the format of a file is detected by its content, not its name") {
  const TempFolder folder;
  const NamedTensors weights = state_dict(*tiny_model(3));
  write_weights(folder.path() / "a.safetensors", weights, /*as_safetensors=*/false);
  write_weights(folder.path() / "b.pt", weights, /*as_safetensors=*/true);
  TrainerRig rig(small_run(), one_rank(), tiny_model(3));
  write_safetensors(folder.path() / "c", snapshot(rig.trainer, {"{}", "hash", 1, 0, 0, 0, {}}),
                    /*seal=*/true);
  for (const char* name : {"a.safetensors", "b.pt", "c"}) {
    INFO(name);
    CHECK(same(read_weights(folder.path() / name), weights));
  }
}

TEST_CASE("weights are not read from a checkpoint with any flipped bit in its header") {
  const TempFolder folder;
  TrainerRig rig(small_run());
  const fs::path path = folder.path() / "checkpoint";
  write_safetensors(path, snapshot(rig.trainer, {"{}", "hash", 1, 0, 0, 0, {}}), /*seal=*/true);
  std::uint64_t header_bytes = 0;
  const std::string bytes = read_file(path, 1 << 24, ExitCode::kData);
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const auto refused = [&] { REQUIRE(reading_weights(path).code == ExitCode::kCheckpoint); };
  for_each_flipped_bit(path, {0, 5}, refused, sizeof header_bytes + header_bytes);
  CHECK(read_weights(path).size() == 4);
}

}  // namespace
}  // namespace mnist_train::checkpoint
