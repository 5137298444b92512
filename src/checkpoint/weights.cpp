#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>

#include "base/print.h"
#include "checkpoint/checkpoint.h"

namespace mnist_train::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, 3> kPrefixes{"module.", "_orig_mod.", "model."};
constexpr std::string_view kBatchCount = "num_batches_tracked";

bool is_one_of(std::span<const std::string_view> all, std::string_view text) {
  return std::ranges::find(all, text) != all.end();
}

bool is_torch_file(const fs::path& path) {
  const MappedFile file = MappedFile::open(path, ExitCode::kCheckpoint);
  return is_zip_file(file.bytes()) || is_legacy_torch_file(file.bytes());
}

TensorFile read_any(const fs::path& path) {
  if (is_torch_file(path)) return read_pt(path);
  TensorFile file = read_safetensors(path, /*require_seal=*/false);
  // A checkpoint always has a seal; one that seems to have none is damaged.
  if (is_checkpoint(file)) return {checkpoint_weights(read_checkpoint(path)), {}};
  return file;
}

/// Returns the prefix that precedes the most wanted names in the file. Unless `any` is set,
/// considers only prefixes that wrappers of a model add.
std::string find_prefix(const NamedTensors& file, const NamedTensors& wanted, bool any = false) {
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : wanted) names.insert(name);
  std::map<std::string_view, std::size_t> counts{{"", 0}};
  for (const auto& [full_name, tensor] : file) {
    const std::string_view name = full_name;
    for (std::size_t begin = 0; true;) {
      const std::string_view rest = name.substr(begin);
      if (names.contains(rest)) ++counts[name.substr(0, begin)];
      const std::size_t dot = rest.find('.');
      if (dot == rest.npos || (!any && !is_one_of(kPrefixes, rest.substr(0, dot + 1)))) break;
      begin += dot + 1;
    }
  }
  return std::string(
      std::ranges::max_element(counts, {}, [](const auto& row) { return row.second; })->first);
}

/// Renames the file's tensors that belong to the model so that all have their most common prefix,
/// and returns this prefix. Keeps a name if two tensors would get the same one, or if names of the
/// model begin with its prefix.
std::string unify_prefixes(NamedTensors& file, const NamedTensors& wanted) {
  std::vector<std::string_view> prefixes(kPrefixes.begin(), kPrefixes.end());
  std::erase_if(prefixes, [&](std::string_view prefix) {
    return std::ranges::any_of(wanted,
                               [&](const auto& item) { return item.first.starts_with(prefix); });
  });
  std::map<std::string, std::vector<std::string*>, std::less<>> unwrapped;
  for (auto& [name, tensor] : file) {
    std::string_view base_name = name;
    while (is_one_of(prefixes, base_name.substr(0, base_name.find('.') + 1))) {
      base_name.remove_prefix(base_name.find('.') + 1);
    }
    unwrapped[std::string(base_name)].push_back(&name);
  }
  std::string prefix = find_prefix(file, wanted);
  for (const auto& [name, tensor] : wanted) {
    const auto found = unwrapped.find(name);
    if (found == unwrapped.end() || found->second.size() > 1) continue;
    if (find_named(file, prefix + name) == nullptr) *found->second.front() = prefix + name;
  }
  return prefix;
}

/// Returns the names of the head's tensors. The head is the module that owns the last parameter; if
/// that module does not have `classes` outputs, returns no names.
std::set<std::string> head_of(const models::Model& model, std::int64_t classes) {
  std::set<std::string> names;
  const auto last = model.named_parameters().back();
  if (last.value().dim() == 0 || last.value().size(0) != classes) return names;
  for (const auto& [name, tensor] : model_tensors(model)) {
    if (module_of(name) == module_of(last.key())) names.insert(name);
  }
  return names;
}

/// Returns the names of the model's tensors that keep their initial values.
std::set<std::string> fresh_names(const models::Model& model, const std::vector<std::string>& globs,
                                  std::int64_t classes) {
  constexpr const char* kKey = "/model/weights/new: ";
  std::vector<std::string> names;
  for (const auto& [name, tensor] : model_tensors(model)) names.push_back(name);
  std::set<std::string> fresh;
  for (const std::string& glob : globs) {
    std::set<std::string> matching;
    if (glob == settings::kHead) {
      require_head(kKey, model, classes);
      matching = head_of(model, classes);
    } else {
      std::ranges::copy_if(names, std::inserter(matching, matching.end()),
                           [&](const std::string& name) { return matches_glob(glob, name); });
      if (matching.empty()) throw ConfigKeyError(kKey + unmatched_glob(glob, names));
    }
    fresh.merge(matching);
  }
  return fresh;
}

/// The tensors of a model and of a file, under the model's names.
struct Match {
  NamedTensors wanted{};  // the model's, without fresh ones
  NamedTensors found{};   // the file's, with names in `wanted`
  NamedTensors others{};  // the file's, with other names

  NamedTensors file() const {
    NamedTensors all = found;
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }
};

/// Returns the names of the tensors that the file lacks or contains with a different size.
std::vector<std::string> wrong_names(const Match& match) {
  std::vector<std::string> wrong;
  for (const auto& [name, tensor] : match.wanted) {
    const at::Tensor* found = find_named(match.found, name);
    if (found == nullptr || found->sizes() != tensor.sizes()) wrong.push_back(name);
  }
  return wrong;
}

/// Returns the built-in network that the file's weights belong to, if the model is a different one.
std::optional<settings::ModelName> other_network(const models::Model& model, const Match& match,
                                                 const std::vector<std::string>& wrong,
                                                 const network::ImageShape& images) {
  if (wrong.empty() && match.others.empty()) return std::nullopt;
  const auto like = network_like(match.file(), images);
  if (!like) return std::nullopt;
  const auto model_network = network_like(model_tensors(model), images);
  const bool differs = model_network ? *like != *model_network
                                     : 2 * wrong.size() > match.wanted.size() ||
                                           2 * match.others.size() > match.wanted.size();
  return differs ? like : std::nullopt;
}

/// Returns advice on how to load the file; "" if there is none.
std::string advice(const models::Model& model, const Match& match, std::vector<std::string> wrong,
                   const std::optional<settings::ModelName>& other,
                   const settings::WeightsOptions& weights, const network::ImageShape& images,
                   bool starts_run) {
  if (other) {
    return fmt::format("\nthese look like weights of {0}; set \"model\": {{\"name\": \"{0}\"}}",
                       settings::name_of(*other));
  }
  const bool differs = 2 * wrong.size() > match.wanted.size();
  const std::string prefix = find_prefix(match.others, match.wanted, /*any=*/true);
  if (differs && !prefix.empty()) {
    return fmt::format(
        "\nits names begin with \"{0}\"; rename them in Python: {{name.removeprefix(\"{0}\"): "
        "tensor for name, tensor in weights.items()}}, then save the dict",
        prefix);
  }
  std::string text;
  const at::Tensor& wanted = *find_named(match.wanted, wrong.front());
  const at::Tensor* found = find_named(match.found, wrong.front());
  if (found != nullptr && found->dim() == 4 && wanted.dim() == 4 &&
      wanted.size(1) == images.channels && found->size(1) == 4 - images.channels &&  // 1 or 3
      found->size(0) == wanted.size(0) && found->sizes().slice(2) == wanted.sizes().slice(2)) {
    text = fmt::format("\nset data.channels to {}, as for these weights", found->size(1));
    wrong.erase(wrong.begin());
  }
  const std::set<std::string> head = head_of(model, images.classes);
  const auto is_in_head = [&](const std::string& name) { return head.contains(name); };
  if (differs || !std::ranges::all_of(wrong, is_in_head)) return "";
  if (wrong.empty() || !starts_run) return text;
  return text + "\nto train a new head, set in \"model\": \"weights\": " +
         json_text(OrderedJson{{"file", weights.file.string()}, {"new", settings::kHead}});
}

/// Matches the file's tensors with the model's, leaving out names in `fresh`.
Match match_tensors(const models::Model& model, TensorFile file, const std::set<std::string>& fresh,
                    const std::string& source) {
  Match match;
  for (const auto& item : model_tensors(model)) {
    if (!fresh.contains(item.first)) match.wanted.push_back(item);
  }
  const std::string prefix = unify_prefixes(file.tensors, model_tensors(model));
  std::set<std::string> names;
  for (const auto& [name, tensor] : file.tensors) names.insert(name);
  for (auto& [name, tensor] : file.tensors) {
    const bool has_prefix = name.starts_with(prefix);
    const std::string base_name = has_prefix ? name.substr(prefix.size()) : name;
    // If a name occurs both with and without the prefix, the prefixed one is the model's.
    const bool is_model_tensor = has_prefix || !names.contains(prefix + base_name);
    if (is_model_tensor && find_named(match.wanted, base_name) != nullptr) {
      match.found.emplace_back(base_name, std::move(tensor));
    } else if (!fresh.contains(base_name)) {
      match.others.emplace_back(base_name, std::move(tensor));
    }
  }
  for (const auto& [name, tensor] : match.wanted) {
    if (const auto* problem = find_named(file.unreadable, prefix + name)) {
      fail_checkpoint(fmt::format("{}: {} {}", source, name, *problem));
    }
    // PyTorch has counted batches since 0.4.1; older weights have no count.
    if (name.ends_with(kBatchCount) && find_named(match.found, name) == nullptr) {
      match.found.emplace_back(name, at::zeros({}, at::kLong));
    }
  }
  return match;
}

/// Removes a prefix from all names if all of them have it.
bool remove_prefix(std::string_view prefix, NamedTensors& weights) {
  const auto has_prefix = [&](const auto& entry) { return entry.first.starts_with(prefix); };
  if (weights.empty() || !std::ranges::all_of(weights, has_prefix)) return false;
  for (auto& [name, tensor] : weights) name.erase(0, prefix.size());
  return true;
}

}  // namespace

void require_head(const char* key, const models::Model& model, std::int64_t classes) {
  if (!head_of(model, classes).empty()) return;
  const auto last = model.named_parameters().back();
  throw ConfigKeyError(fmt::format(
      "{}\"head\" is the module of the last parameter, {} {}, which does not have {}; list the "
      "last layer's parameters as globs instead",
      key, last.key(), c10::str(last.value().sizes()), counted(classes, "output")));
}

std::set<std::string> load_weights(models::Model& model, const settings::WeightsOptions& weights,
                                   const network::ImageShape& images, bool starts_run, bool logs) {
  const std::string source = weights.file.string();
  const std::set<std::string> fresh = fresh_names(model, weights.fresh, images.classes);
  const Match match = match_tensors(model, read_any(weights.file), fresh, source);
  const std::vector<std::string> wrong = wrong_names(match);
  const auto other = other_network(model, match, wrong, images);
  if (!wrong.empty() || other) {
    const std::string text = advice(model, match, wrong, other, weights, images, starts_run);
    fail_checkpoint(source + ": does not fit the model" + text +
                    (text.empty() ? ":" : "\ndifferences:") +
                    differences(match.wanted, match.file()));
  }
  if (!match.others.empty() && logs) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : match.others) names.push_back(name);
    spdlog::warn("{}: ignored {} that the model does not have: {}", source,
                 counted(std::ssize(names), "tensor"), first_names(names, /*max_names=*/10));
  }
  if (!fresh.empty() && logs) {
    const std::vector<std::string> names(fresh.begin(), fresh.end());
    spdlog::info("{}: loaded {}, initialised {}: {}", source,
                 counted(std::ssize(match.found), "tensor"), fresh.size(),
                 first_names(names, /*max_names=*/10));
  }
  copy_tensors(match.wanted, match.found);
  require_finite(model, source);
  return fresh;
}

NamedTensors read_weights(const fs::path& path) {
  TensorFile file = read_any(path);
  for (const auto& [name, problem] : file.unreadable) {
    fail_checkpoint(fmt::format("{}: {} {}", path.string(), name, problem));
  }
  // DistributedDataParallel and torch.compile may have been applied in either order.
  while (remove_prefix("module.", file.tensors) || remove_prefix("_orig_mod.", file.tensors)) {
  }
  return std::move(file.tensors);
}

std::optional<settings::ModelName> network_like(const NamedTensors& file,
                                                const network::ImageShape& images) {
  constexpr double kMinSimilarity = 0.75;
  constexpr std::int64_t kPublishedSide = 224;
  const auto counts = [](const std::string& name) { return !name.ends_with(kBatchCount); };
  const auto size = std::ranges::count_if(file, counts, &NamedTensors::value_type::first);
  std::optional<settings::ModelName> best;
  double best_similarity = kMinSimilarity;
  for (const settings::ModelName candidate : settings::all_models()) {
    settings::ModelOptions options;
    options.name = candidate;
    network::ImageShape shape = images;
    if (settings::published_normalize(options)) shape = {3, kPublishedSide, kPublishedSide, 2};
    try {
      const auto names = network::parameter_names(network::make_network(options, shape).layers);
      const auto found_names = std::ranges::count_if(names, [&](const std::string& name) {
        return std::ranges::any_of(file,
                                   [&](const auto& item) { return item.first.ends_with(name); });
      });
      // Building a large network takes a long time, so its names are compared first.
      if (static_cast<double>(found_names) < kMinSimilarity * static_cast<double>(names.size())) {
        continue;
      }
      const auto model = models::make_model(options, shape, 0);
      const std::set<std::string> head = head_of(*model, shape.classes);
      const NamedTensors tensors = model_tensors(*model);
      NamedTensors renamed = file;
      const std::string prefix = unify_prefixes(renamed, tensors);
      std::ptrdiff_t model_size = 0;
      std::ptrdiff_t matching = 0;
      for (const auto& [name, tensor] : tensors) {
        if (!counts(name)) continue;
        ++model_size;
        const at::Tensor* found = find_named(renamed, prefix + name);
        if (found == nullptr) continue;
        matching += head.contains(name) || found->sizes() == tensor.sizes() ? 1 : 0;
      }
      const double similarity =
          static_cast<double>(matching) / static_cast<double>(std::max(model_size, size));
      if (similarity < best_similarity) continue;
      best_similarity = similarity;
      best = candidate;
    } catch (const ConfigKeyError&) {  // it does not fit the images
    }
  }
  return best;
}

std::optional<RunFacts> facts_of(const fs::path& path) {
  if (is_torch_file(path)) return std::nullopt;
  const TensorFile file = read_safetensors(path, /*require_seal=*/false);
  return is_checkpoint(file) ? std::optional(checkpoint_facts(file, path.string())) : std::nullopt;
}

void write_weights(const fs::path& path, const NamedTensors& weights, bool as_safetensors) {
  if (!as_safetensors) return write_pt(path, weights);
  write_safetensors(path, {weights, {{"format", "pt"}}}, /*seal=*/false);
}

}  // namespace mnist_train::checkpoint
