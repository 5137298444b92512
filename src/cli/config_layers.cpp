#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>

#include "base/file.h"
#include "base/hash.h"
#include "base/print.h"
#include "cli/cli.h"
#include "data/dataset.h"
#include "report/records.h"
#include "settings/schemas.h"

namespace mnist_train::cli {

namespace {

using strict_json::Node;
using strict_json::node_at;
using strict_json::Problems;
using strict_json::Source;

/// The executable is in bin of an installation or bundle, or of the repository's build[/<preset>].
fs::path shipped_folder() {
  for (const char* up : {"../share/mnist-train", "..", "../..", "../../.."}) {
    fs::path folder = (executable_folder() / up / "configs").lexically_normal();
    if (path_exists(folder / "mnist.json")) return folder;
  }
  return {};
}

std::shared_ptr<const Source> make_source(std::string name, std::string text,
                                          fs::path folder = fs::current_path(),
                                          bool omits_position = false) {
  return std::make_shared<const Source>(
      Source{std::move(name), std::move(text), std::move(folder), omits_position});
}

std::shared_ptr<const Source> flag_source(const std::string& flag, const std::string& text) {
  const std::string shown = strict_json::shorten(text);
  return make_source(flag + ' ' + shown, text, fs::current_path(),
                     /*omits_position=*/shown == text);
}

/// Parses the text from `begin` on as JSON if it is valid JSON, otherwise as a string.
Node value_node(const std::shared_ptr<const Source>& source, std::size_t begin,
                Problems& problems) {
  if (nlohmann::json::accept(source->text.substr(begin))) {
    if (auto node = strict_json::parse_document(source, problems, begin)) return std::move(*node);
  }
  return node_at(source, begin, source->text.substr(begin));
}

/// Returns an object that contains `value` under `key`. The object and the key are at `offset`.
Node wrap(const std::string& key, std::size_t offset, Node value) {
  Node object = node_at(value.source, offset);
  object.members.push_back({key, offset, std::move(value)});
  return object;
}

/// Returns the layer of one --set, or nothing if the text is not KEY.PATH=VALUE.
std::optional<Node> set_layer(const std::string& text, Problems& problems) {
  const std::size_t equals = text.find('=');
  const auto source = flag_source("--set", text);
  const auto refuse = [&] {
    problems.push_back(
        {source, 0, "",
         "expected KEY.PATH=VALUE, such as epochs=2, found \"" + strict_json::shorten(text) + '"'});
    return std::nullopt;
  };
  if (equals == std::string::npos) return refuse();
  Problems found;
  Node layer = value_node(source, equals + 1, found);
  // From the last key to the first.
  for (std::size_t end = equals;;) {
    const std::size_t dot = end == 0 ? std::string::npos : text.rfind('.', end - 1);
    const std::size_t begin = dot == std::string::npos ? 0 : dot + 1;
    if (begin == end) return refuse();
    const std::string key = text.substr(begin, end - begin);
    layer = wrap(key, begin, std::move(layer));
    for (strict_json::Problem& problem : found) {
      problem.pointer = strict_json::join_pointer("", key) + problem.pointer;
    }
    if (begin == 0) break;
    end = dot;
  }
  problems.insert(problems.end(), found.begin(), found.end());
  return layer;
}

std::vector<Node> collect_layers(const CommandLine& line, ConfigFiles documents,
                                 Problems& problems) {
  constexpr const char* kVariable = "MNIST_TRAIN_SET";
  if (const char* text = std::getenv(kVariable); text != nullptr && *text != '\0') {
    documents.push_back(make_source(kVariable, text));
  }
  bool all_readable = true;
  std::vector<Node> layers{node_at(make_source("the defaults", ""), 0)};
  const auto add = [&](Node layer) {
    settings::check_layer(layer, problems);
    layers.push_back(std::move(layer));
  };
  for (const auto& document : documents) {
    std::optional<Node> node = strict_json::parse_document(document, problems);
    all_readable = all_readable && node && node->value.is_object();
    if (node) add(std::move(*node));
  }
  if (line.output && (line.command == Command::kTrain || line.command == Command::kDoctor)) {
    add(wrap("output", 0, node_at(flag_source("--output", *line.output), 0, *line.output)));
  }
  if (line.processes_per_node) {
    const auto source = flag_source("--nproc-per-node", *line.processes_per_node);
    add(wrap("launch", 0, wrap("processes_per_node", 0, value_node(source, 0, problems))));
  }
  for (const std::string& text : line.sets) {
    if (std::optional<Node> layer = set_layer(text, problems)) add(std::move(*layer));
  }
  // If a layer is missing, rules that involve multiple keys would report false errors.
  if (!all_readable) strict_json::throw_if_any(problems);
  return layers;
}

/// Returns the header of a safetensors file; not an object if there is no valid header.
nlohmann::json parse_header(std::span<const std::uint8_t> file) {
  const auto text = safetensors_header(file);
  return nlohmann::json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
}

/// Returns the config in a checkpoint, or the config.json of another weights file's run.
std::shared_ptr<const Source> checkpoint_config(const fs::path& path) {
  check_readable("--checkpoint ", path);
  const MappedFile file = MappedFile::open(path, ExitCode::kCheckpoint);
  const nlohmann::json state = checkpoint_state(file.bytes());
  if (state.contains("config")) {
    return make_source(path.string(), state["config"].dump(), fs::absolute(path).parent_path(),
                       /*omits_position=*/true);
  }
  const fs::path config = file_of_run(path, settings::run_files::kConfig);
  if (!config.empty()) return strict_json::load_source(config.string());
  if (!parse_header(file.bytes()).is_object() && !is_zip_file(file.bytes()) &&
      !is_legacy_torch_file(file.bytes())) {
    throw Error(ExitCode::kCheckpoint, path.string() +
                                           ": is not a checkpoint, a safetensors file or a "
                                           "torch.save file (.pt, .pth)");
  }
  refuse(
      "{}: contains no config, and there is no config.json next to it; pass the config it was "
      "trained with (--config)",
      path.string());
}

/// Returns whether the command evaluates a checkpoint on the test set.
bool uses_test_set(const CommandLine& line) {
  return line.command == Command::kEvaluate || line.predicts_test;
}

/// Throws if the command would test a run on held-out files other than the run's own.
void check_held_out(const CommandLine& line, const settings::DataOptions& data) {
  if (!uses_test_set(line) || !line.checkpoint_file || data.test_fraction == 0) return;
  const fs::path checkpoint = fs::absolute(*line.checkpoint_file);
  if (file_of_run(checkpoint, settings::run_files::kDataset).empty()) return;
  settings::DataOptions run_data;
  try {
    run_data = settings::parse_run_config(*checkpoint_config(*line.checkpoint_file)).data;
  } catch (const Error&) {  // no config, or one of another version
    return;
  }
  const auto compare = [](const char* key, auto given, auto recorded) {
    if (given == recorded) return;
    refuse(
        "/data/{}: is {}, but was {} in the run, whose held-out files are listed in its "
        "dataset.json; remove this key, or set data.test to a folder or file",
        key, given, recorded);
  };
  compare("test", data.test_fraction, run_data.test_fraction);
  compare("holdout_seed", data.holdout_seed, run_data.holdout_seed);
}

/// Throws if a command tests a run and its data has been moved or removed. The training data is
/// needed only if the test set is a part of it, or if nothing else describes the classes.
void check_data_of_run(const CommandLine& line, const settings::DataOptions& data) {
  if (!uses_test_set(line)) return;
  const bool needs_train = !data::has_test_files(data) || dataset_record(line, data).empty();
  for (const auto& [key, location] : {std::pair("train", data.train), {"test", data.test}}) {
    const bool is_train = key == std::string_view("train");
    if (!location || path_exists(location->images) || (is_train && !needs_train)) continue;
    const char* reason = !is_train   ? ""
                         : data.test ? ", which defines the classes: the weights do not name them"
                                     : ", which contains the test set";
    throw Error(ExitCode::kData,
                fmt::format("{}: no such file or folder (data.{}{}{}); if it has moved, pass "
                            "--set data.{}=PATH",
                            location->images.string(), key,
                            line.configs.empty() ? " of the run" : "", reason, key));
  }
}

/// Reads a config. The paths in a shipped config given by name are relative to ./configs, because
/// its data does not come with the program.
std::shared_ptr<const Source> load_config(const std::string& name) {
  const std::string path = find_config(name);
  std::shared_ptr<const Source> source = strict_json::load_source(path);
  if (path == name) return source;
  return make_source(source->name, source->text, fs::current_path() / "configs");
}

using Locators = std::map<const strict_json::Source*, strict_json::TextLocator>;

/// Adds the positions of a node and of all nodes below it. Nodes are mostly visited in the order of
/// the source text, so each source is scanned about once.
void add_positions(const Node& node, const std::string& pointer, Locators& locators,
                   std::map<std::string, std::string>& positions) {
  const auto locator = locators.try_emplace(node.source.get(), *node.source).first;
  positions[pointer] = locator->second.place(node.offset);
  for (const Node::Member& member : node.members) {
    const std::string below = strict_json::join_pointer(pointer, member.key);
    add_positions(member.value, below, locators, positions);
  }
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    add_positions(node.items[i], pointer + "/" + std::to_string(i), locators, positions);
  }
}

/// Returns false if a problem concerns the section or the whole config, or is an unknown key that
/// seems to belong in the section.
bool is_valid(const std::string& section, const Problems& problems) {
  const auto is_inside = [&](const std::string& pointer) {
    return (pointer + '/').starts_with('/' + section + '/');
  };
  return std::ranges::none_of(problems, [&](const strict_json::Problem& problem) {
    return problem.pointer.empty() || is_inside(problem.pointer) ||
           std::ranges::any_of(problem.hints, is_inside);
  });
}

/// Checks that the network's layers fit if the image size is known (from the data set's name or,
/// for `model.layers`, its files), and that the globs of `parameters` match. Skips sections with
/// problems, to avoid follow-up errors. Returns the errors, one per line. Throws Error(kData) if
/// the files cannot be read and there are no other problems.
std::string network_errors(const CommandLine& line, const LayeredConfig& layered,
                           const Problems& problems) {
  const settings::RunConfig& config = layered.config;
  const bool describes = line.command == Command::kDescribe && !line.describes_data;
  const bool runs = line.command == Command::kTrain || line.command == Command::kEvaluate;
  if (!(describes || runs) || !is_valid("model", problems) || !config.model.has_layers()) return "";
  std::string errors;
  const auto attempt = [&](const auto& check) {
    try {
      check();
    } catch (const ConfigKeyError& error) {
      errors += (errors.empty() ? "" : "\n") + launch::message_of(error, key_positions(layered));
    } catch (const Error&) {
      if (problems.empty()) throw;
    }
  };
  std::optional<network::Network> sized;
  attempt([&] {
    if (!is_valid("data", problems)) return;
    // Opening a data set may take a while; for built-in networks the ranks report the same errors.
    const bool may_open_data =
        line.command == Command::kTrain && !line.dry_run && config.model.layers;
    if (may_open_data || network::known_images(config.data)) sized = checked_network(config);
  });
  attempt([&] {
    if (config.train.parameters.empty() || !is_valid("parameters", problems)) return;
    // The parameter names of built-in networks do not depend on the images.
    if (!sized && !config.model.layers) {
      sized = network::make_network(config.model, {1, 32, 32, 10});
    }
    if (!sized) return;
    (void)settings::parameter_settings(config.train.parameters, parameter_names(sized->layers));
  });
  return errors;
}

/// Returns the file to use in place of a run folder or its checkpoint folder.
fs::path find_run_file(const fs::path& folder, bool to_resume) {
  const fs::path inside = folder / settings::run_files::kCheckpoints;
  const fs::path& checkpoints = path_exists(inside) ? inside : folder;
  const std::vector<std::int64_t> steps = saved_steps(checkpoints);
  fs::path file = checkpoints / kBestCheckpoint;
  const char* kind = "best checkpoint";
  if (!steps.empty() && (to_resume || !path_exists(file))) {
    file = checkpoints / checkpoint_name(steps.back());
    kind = "newest checkpoint";
  }
  if (!path_exists(file) && !to_resume) {
    file = folder / report::config_of(folder).model_file;
    kind = "final weights";
  }
  if (!path_exists(file)) {
    throw Error(ExitCode::kCheckpoint,
                folder.string() +
                    ": is a folder without a checkpoint; expected a checkpoint, or "
                    "the folder of a run that has saved one");
  }
  const auto identity = launch::identity_from_environment();
  const bool speaks_for_all = !identity || identity->rank == 0;
  if (speaks_for_all) spdlog::info("{}: using its {}, {}", folder.string(), kind, file.string());
  return file;
}

/// Describes the damage to a checkpoint. Returns nothing if it is intact or not a checkpoint.
std::optional<std::string> damage_of(const fs::path& path, std::span<const std::uint8_t> bytes) {
  const nlohmann::json header = parse_header(bytes);
  if (!header.is_object()) {
    const bool is_other_format =
        is_zip_file(bytes) || is_legacy_torch_file(bytes) || is_text(text_of(bytes));
    if (path.extension() != ".safetensors" || is_other_format) return std::nullopt;
    return "its header cannot be read";
  }
  if (!header.contains(kSealName) || matches_seal(bytes)) return std::nullopt;
  return "its checksum does not match its content";
}

/// Replaces a run folder with one of its files, and rejects a damaged file before any process
/// starts or its config is read. `origin`: as for `check_readable`.
void find_file(const std::string& origin, std::string& path, bool to_resume) try {
  std::error_code ignored;
  if (is_folder(path)) path = find_run_file(path, to_resume).string();
  if (!fs::is_regular_file(path, ignored)) return;  // reported when it is read
  const MappedFile file = MappedFile::open(path, ExitCode::kCheckpoint);
  const auto damage = damage_of(path, file.bytes());
  if (!damage) return;
  const auto other = newest_intact_checkpoint(fs::absolute(path).parent_path());
  throw Error(ExitCode::kCheckpoint, path + ": is damaged: " + *damage + "; " +
                                         (other ? other->string() + " is intact"
                                                : "there is no intact checkpoint in its folder"));
} catch (const Error& error) {
  throw ConfigKeyError(origin + error.what(), error.code());
}

}  // namespace

std::vector<std::string> shipped_configs() {
  std::vector<std::string> names;
  for (const fs::path& path : paths_in(shipped_folder())) {
    if (path.extension() == ".json") names.push_back(path.stem().string());
  }
  std::ranges::sort(names);
  return names;
}

std::string find_config(const std::string& name) {
  const fs::path path = name;
  const bool exists = path_exists(path);
  if ((exists && !is_folder(path)) || name == "-" || name.empty()) return name;
  const std::vector<std::string> shipped = shipped_configs();
  const std::string stem = path.extension() == ".json" ? path.stem().string() : name;
  const bool is_shipped = std::ranges::binary_search(shipped, stem);
  if (is_shipped && !path.has_parent_path()) return shipped_folder() / (stem + ".json");
  if (shipped.empty() || exists) return name;  // the reader reports the error
  const auto guess = strict_json::closest_name(stem, shipped);
  refuse("{}: no such file; configs that come with mnist-train: {} (--config {})",
         on_one_line(name), fmt::join(shipped, ", "), is_shipped ? stem : guess.value_or("mnist"));
}

ConfigFiles config_files(const CommandLine& line) {
  ConfigFiles files;
  for (const std::string& name : line.configs) files.push_back(load_config(name));
  const bool reads_checkpoint = line.command == Command::kEvaluate ||
                                line.command == Command::kPredict || line.exports_network();
  if (files.empty() && reads_checkpoint) {
    files.push_back(checkpoint_config(line.checkpoint_file.value_or("")));
  }
  return files;
}

LayeredConfig read_layers(const CommandLine& line, const ConfigFiles& files) {
  Problems problems;
  std::vector<Node> layers = collect_layers(line, files, problems);
  const Node last_file = node_at(layers[files.size()].source, layers[files.size()].offset);
  LayeredConfig layered{{}, settings::merge_layers(std::move(layers))};
  if (!files.empty()) {  // the position of errors about keys that no layer sets
    layered.document.source = last_file.source;
    layered.document.offset = last_file.offset;
  }
  layered.config = settings::read_run_config(layered.document, problems);
  if (problems.empty()) check_data_of_run(line, layered.config.data);
  strict_json::throw_if_any(problems, network_errors(line, layered, problems));
  check_held_out(line, layered.config.data);
  return layered;
}

std::map<std::string, std::string> key_positions(const LayeredConfig& layered) {
  std::map<std::string, std::string> positions;
  Locators locators;
  const Node start = node_at(layered.document.source, layered.document.offset);
  for (const settings::KnownKey& key : settings::config_keys()) {
    if (!key.group.empty()) continue;
    const Node* value = layered.document.find(key.name);
    add_positions(value == nullptr ? start : *value, '/' + key.name, locators, positions);
  }
  // If the config names no model, the mistake is in the images, which do not fit the default one.
  const bool sets_size = positions.contains("/data/size");
  positions.emplace("/model/name", positions.at(sets_size ? "/data/size" : "/data"));
  return positions;
}

network::Network checked_network(const settings::RunConfig& config) {
  auto images = network::known_images(config.data);
  if (!images) {
    const data::ImageSet found = data::read_image_shape(config.data);
    images = network::ImageShape{found.channels, found.height, found.width, found.classes};
  }
  return network::make_network(config.model, network::model_input(config.data, *images));
}

void find_checkpoints(CommandLine& line) {
  if (line.checkpoint_file) {
    find_file(line.checkpoint_flag(), *line.checkpoint_file, /*to_resume=*/false);
  }
  if (line.resume.empty() || line.resume == "auto") return;
  find_file("--resume ", line.resume, /*to_resume=*/true);
}

fs::path file_of_run(const fs::path& weights, const char* name) {
  const fs::path folder = weights.parent_path();
  const bool is_inner = folder.filename() == settings::run_files::kCheckpoints;
  for (const fs::path& each : {folder, is_inner ? folder.parent_path() : folder,
                               report::run_that_wrote(weights).value_or(folder)}) {
    if (path_exists(each / name)) return each / name;
  }
  return {};
}

fs::path dataset_record(const CommandLine& line, const settings::DataOptions& data) {
  fs::path weights = fs::absolute(*line.checkpoint_file);
  fs::path record = file_of_run(weights, settings::run_files::kDataset);
  const bool lists_test = uses_test_set(line) && data.test_fraction > 0 && !record.empty();
  try {
    const MappedFile file = MappedFile::open(weights, ExitCode::kCheckpoint);
    if (!lists_test && !checkpoint_state(file.bytes()).is_null()) return weights;
  } catch (const Error&) {  // reported when it is read
  }
  return record;
}

void find_model_weights(settings::RunConfig& config, bool resumes) {
  if (!config.model.weights) return;
  std::string path = config.model.weights->file.string();
  if (resumes && !path_exists(path)) return;
  find_file("/model/weights: ", path, /*to_resume=*/false);
  config.model.weights->file = path;
}

void check_readable(const std::string& origin, const fs::path& path, ExitCode code,
                    const char* remark) try {
  (void)MappedFile::open(path, code);
} catch (const Error& error) {
  throw ConfigKeyError(origin + error.what() + remark, code);
}

void check_output_file(const fs::path& path) {
  if (path == "-") refuse("--output -: expected a file name");
  if (is_folder(path)) refuse("{}: is a folder; expected a file name", path.string());
  if (const auto run = report::run_that_wrote(path)) {
    refuse("--output {}: is a file of the run in {} and is never overwritten; choose another name",
           path.string(), run->string());
  }
  const AtomicFile trial(path, ExitCode::kConfig);  // not committed, so nothing changes
}

}  // namespace mnist_train::cli
