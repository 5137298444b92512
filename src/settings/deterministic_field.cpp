#include <algorithm>
#include <utility>

#include "settings/run_config.h"
#include "settings/schemas.h"

/// The key `deterministic`, and what does not work with its shards.
namespace mnist_train::settings {

namespace {

using Options = TrainOptions;

/// The object that `deterministic` may be.
struct Cut {
  std::int64_t shards = 1;
};

Type<Cut> cut() {
  Schema<Cut> schema;
  schema
      .add(
          "shards", &Cut::shards, integer(1, kMaxProcessesPerNode),
          "Cuts each global batch into so many shards. The bits are theirs, whatever the number of "
          "processes that compute them: from 1 to as many as there are shards.")
      .required = true;
  return group(std::move(schema));
}

void check_process_count(RunConfig& config, const JsonCursor& cursor) {
  const auto& shards = config.train.shards;
  const auto& launch_options = config.launch;
  const auto listed = static_cast<std::int64_t>(launch_options.devices.size());
  const std::int64_t processes = std::max(listed, launch_options.processes_per_node.value_or(0));
  if (!shards || processes <= *shards) return;
  cursor.add_error_at(listed > 0 ? "launch/devices" : "launch/processes_per_node",
                      "asks for " + std::to_string(processes) +
                          " processes, but deterministic.shards cuts each batch into " +
                          std::to_string(*shards) +
                          ": a process without a shard would have nothing to do");
}

}  // namespace

std::int64_t shard_count(const TrainOptions& options, int processes) {
  return options.shards.value_or(processes);
}

Json is_sharded() { return holds("deterministic", given("shards")); }

strict_json::Field<Options> deterministic_field() {
  const auto flag = boolean();
  const auto read = [object = cut(), flag](Options& options, const JsonCursor& cursor) {
    if (cursor.node().kind == JsonKind::kObject) {
      if (const auto value = object.read(cursor)) options.shards = value->shards;
      options.deterministic = true;
    } else if (const auto value = flag.read(cursor.or_else("{\"shards\": 4}"))) {
      options.deterministic = *value;
    }
  };
  const auto write = [object = cut()](const Options& options) -> std::optional<Json> {
    if (options.shards) return object.write({*options.shards});
    return Json(options.deterministic);
  };
  return {"deterministic",
          "true: the same bits from the same binary, hardware and number of processes and threads. "
          "With shards: on any number of processes, too.",
          {{"anyOf", {flag.fragment, cut().fragment}}},
          read,
          write,
          {},
          cut().keys};
}

void add_shard_rules(Schema<RunConfig>& schema) {
  const auto forbid = [&schema](const std::string& key, const Json& condition,
                                const std::string& reason) {
    schema.forbid(key, all_of({is_sharded(), condition}), reason);
  };
  forbid("batch_size_per_process", given("batch_size_per_process"),
         "lets the number of processes decide the global batch: conflicts with "
         "deterministic.shards; set batch_size");
  forbid("sync_batch_norm", equal("sync_batch_norm", true),
         "conflicts with deterministic.shards, by which batch statistics are taken");
  forbid("gradient_averaging/strategy", holds("gradient_averaging", equal("strategy", "bucketed")),
         "\"bucketed\" adds gradients up in an order of its own: conflicts with "
         "deterministic.shards; use \"auto\"");
  forbid("gradient_averaging/compression",
         holds("gradient_averaging",
               all_of({given("compression"), none_of(equal("compression", "none"))})),
         "rounds what each process has summed: conflicts with deterministic.shards");
  forbid("data/train_per_process", holds("data", given("train_per_process")),
         "gives each process samples of its own: conflicts with deterministic.shards");
  schema.check(check_process_count);
}

}  // namespace mnist_train::settings
