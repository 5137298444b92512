// Tests invalid values and combinations of keys.

#include "support/catch.h"
#include "support/config_text.h"

namespace mnist_train::settings {

using namespace testing;

TEST_CASE("keys that contradict each other are refused") {
  using Case = std::pair<const char*, const char*>;
  const auto [text, line] = GENERATE(values<Case>({
      {R"({"batch_size":1,"batch_size_per_process":2})",
       "f:1:42: /batch_size_per_process: conflicts with batch_size; set only one of them"},
      {R"({"model":{"name":"net","hidden":[10]}})", "f:1:33: /model/hidden: is only for model mlp"},
      {R"({"model":{"activation":"relu"}})", "f:1:24: /model/activation: is only for model mlp"},
      {R"({"schedule":{"name":"cosine","pct_start":0.3}})",
       "f:1:42: /schedule/pct_start: is only for schedule one_cycle"},
      {R"({"schedule":{"patience":3}})",
       "f:1:25: /schedule/patience: is only for schedule plateau"},
      {R"({"schedule":{"name":"one_cycle"}})",
       "f:1:13: /schedule: schedule one_cycle needs \"max_learning_rate\""},
      {R"({"schedule":{"name":"one_cycle","max_learning_rate":1,"warmup_epochs":2}})",
       "f:1:71: /schedule/warmup_epochs: must be 0 with schedule one_cycle; its warm-up is set "
       "by pct_start"},
      {R"({"epochs":2,"schedule":{"warmup_epochs":2.5}})",
       "f:1:41: /schedule/warmup_epochs: is longer than the run of 2 epochs"},
      {R"({"early_stopping":{"min_delta":0.1}})", R"(f:1:19: /early_stopping: needs "patience")"},
      {R"({"gradient_averaging":{"strategy":"shared_memory","compression":"fp16"}})",
       "f:1:65: /gradient_averaging/compression: must be none with strategy shared_memory, which "
       "sends no data"},
      {R"({"nesterov":true,"sgd_momentum":0})", "f:1:13: /nesterov: needs sgd_momentum above 0"},
      {R"({"optimizer":"adam","nesterov":true})", "f:1:32: /nesterov: is only for optimizer sgd"},
      {R"({"nesterov":true,"optimizer":"adamw"})", "f:1:13: /nesterov: is only for optimizer sgd"},
      {R"({"data":{"dataset":"mnist","format":"idx","train":"a","test":"b"}})",
       "f:1:37: /data/format: conflicts with dataset; set only one of them"},
      {R"({"data":{"format":"idx","train":"a"}})",
       "f:1:19: /data/format: requires test: a test set, or a fraction of train to hold out, such "
       "as 0.2"},
      {R"({"data":{"format":"idx","train":"a","test":1.5}})",
       "f:1:44: /data/test: expected a number above 0 and below 1 or a path, found 1.5"},
      {R"({"data":{"format":"idx","train_per_process":["a"],"test":0.2}})",
       "f:1:58: /data/test: is a fraction, which cannot be used with train_per_process; give a "
       "test set"},
      {R"({"data":{"dataset":"mnist","test":0.2}})",
       "f:1:35: /data/test: requires a format, such as \"idx\""},
      {R"({"data":{"format":"lmdb","test":"a"}})", "f:1:19: /data/format: requires train"},
      {R"({"data":{"format":"idx","train":"a","train_per_process":["b"],"test":"c"}})",
       "f:1:57: /data/train_per_process: conflicts with train; set only one of them"},
      {R"({"data":{"format":"idx","train_per_process":[],"test":"c"}})",
       "f:1:45: /data/train_per_process: expected one location per process or null, found a "
       "list"},
      {R"({"data":{"format":"lmdb","train_per_process":["a",{"images":"b","labels":"c"}],"test":"d"}})",
       "f:1:46: /data/train_per_process: expected a path; only idx has a separate labels file"},
      {R"({"data":{"format":"cifar","train":{"images":"b","labels":"c"},"test":"d"}})",
       "f:1:35: /data/train: expected a path; only idx has a separate labels file"},
      {R"({"data":{"format":"lmdb","train_per_process":["a"],"test":"d","validation":0.1}})",
       "f:1:76: /data/validation: cannot be used with train_per_process; set data.test"},
      {R"({"data":{"format":"lmdb","train_per_process":["a"],"test":"d","limit_train":9}})",
       "f:1:77: /data/limit_train: cannot be used with train_per_process"},
      {R"({"data":{"format":"lmdb","train_per_process":["a"],"test":"d","split":"throughput"}})",
       "f:1:71: /data/split: \"throughput\" moves samples between processes, which "
       "train_per_process forbids"},
      {R"({"data":{"channels":2}})", "f:1:21: /data/channels: expected 1 or 3, found 2"},
      {R"({"data":{"normalize":{"mean":[0.1,0.2,0.3]}}})",
       "f:1:30: /data/normalize/mean: lists 3 numbers, but the images have 1 channel"},
      {R"({"data":{"dataset":"cifar10","augment":["mixup",{"name":"normalize","std":[1,2]}]}})",
       "f:1:75: /data/augment/1/std: lists 2 numbers, but the images have 3 channels"},
      {R"({"data":{"dataset":"cifar10","channels":1,"normalize":{"std":[1,2,3]}}})",
       "f:1:62: /data/normalize/std: lists 3 numbers, but the images have 1 channel"},
      {R"({"data":{"augment":[{"name":"random_crop","size":99}]}})",
       "f:1:21: /data/augment/0: random_crop needs 99x99 pixels, but images of 28x28 with padding "
       "0 are smaller"},
      {R"({"data":{"dataset":"mnits","augment":[{"name":"random_crop","size":99}]}})",
       "f:1:20: /data/dataset: expected \"mnist\", \"fashion-mnist\" or \"cifar10\" or null, found "
       "the "
       "string \"mnits\"; did you mean \"mnist\"?"},
      {R"({"data":{"on_bad_sample":"skip"}})",
       "f:1:26: /data/on_bad_sample: is only for formats image-folder, image-list and lmdb"},
      {R"({"data":{"decode":"stream"}})",
       "f:1:19: /data/decode: is only for formats image-folder, image-list and lmdb"},
      {R"({"data":{"format":"lmdb","train":"a","test":"b","decode_threads":2}})",
       "f:1:66: /data/decode_threads: requires decode \"stream\" or \"dali\""},
      {R"({"data":{"format":"synthetic","train":"a"}})",
       "f:1:39: /data/train: is not used with format synthetic, which generates its samples"},
      {R"({"data":{"train":"a"}})", R"(f:1:18: /data/train: requires a format, such as "idx")"},
      {R"({"data":{"format":"idx","train":"a","test":"b","root":"r"}})",
       "f:1:55: /data/root: is the folder to search for a data set; it is not used with format"},
      {R"({"data":{"format":"idx","train":{"images":"a"},"test":"b"}})",
       "f:1:33: /data/train: needs \"labels\""},
      {R"({"backend":"nccl","device":"cpu"})",
       R"(f:1:12: /backend: "nccl" requires every process to use a GPU, but device is "cpu")"},
      {R"({"cuda_graphs":"on","device":"cpu"})",
       R"(f:1:16: /cuda_graphs: "on" requires every process to use a GPU, but device is "cpu")"},
      {R"({"cuda_graphs":"on","gradient_accumulation_steps":2})",
       R"(f:1:16: /cuda_graphs: "on" does not work with gradient_accumulation_steps above 1)"},
      {R"({"device":"cuda","gradient_averaging":{"strategy":"shared_memory"}})",
       "f:1:39: /gradient_averaging: strategy \"shared_memory\" is for processes on CPUs, but "
       "device is \"cuda\""},
      {R"({"backend":"nccl","launch":{"devices":["cuda:0","cpu"]}})",
       R"(f:1:12: /backend: "nccl" requires every process to use a GPU, but /launch/devices lists "cpu")"},
      {R"({"device":"cpu","launch":{"devices":["cuda"]}})",
       "f:1:11: /device: /launch/devices lists other devices"},
      {R"({"deterministic":true,"data":{"split":"throughput"}})",
       "f:1:39: /data/split: \"throughput\" depends on measured speed, which varies between runs: "
       "conflicts with deterministic"},
      {R"({"deterministic":{"shards":2},"data":{"split":"throughput"}})",
       "f:1:47: /data/split: \"throughput\" depends on measured speed, which varies between runs: "
       "conflicts with deterministic"},
      {R"({"deterministic":{"shards":2},"batch_size_per_process":8})",
       "f:1:56: /batch_size_per_process: makes the global batch depend on the number of "
       "processes: conflicts with deterministic.shards; set batch_size"},
      {R"({"deterministic":{"shards":2},"sync_batch_norm":true})",
       "f:1:49: /sync_batch_norm: conflicts with deterministic.shards, which computes batch "
       "statistics per shard"},
      {R"({"deterministic":{"shards":2},"gradient_averaging":{"strategy":"bucketed"}})",
       "f:1:64: /gradient_averaging/strategy: \"bucketed\" sums gradients in its own order: "
       "conflicts with deterministic.shards; use \"auto\""},
      {R"({"deterministic":{"shards":2},"gradient_averaging":{"compression":"fp16"}})",
       "f:1:67: /gradient_averaging/compression: rounds the sum of each process: conflicts "
       "with deterministic.shards"},
      {R"({"deterministic":{"shards":2},"launch":{"processes_per_node":3}})",
       "f:1:62: /launch/processes_per_node: asks for 3 processes, but deterministic.shards is only "
       "2"},
      {R"({"deterministic":{"shards":1},"launch":{"devices":["cpu","cpu"]}})",
       "f:1:51: /launch/devices: asks for 2 processes, but deterministic.shards is only 1"},
      {R"({"gradient_averaging":{"strategy":"bucketed"},"data":{"split":"throughput"}})",
       "f:1:63: /data/split: \"throughput\" measures how long each process computes; with "
       "gradient_averaging.strategy \"bucketed\", this includes waiting for the others; use "
       "\"flat\" or \"auto\""},
      {R"({"sync_batch_norm":true,"data":{"split":"throughput"}})",
       "f:1:41: /data/split: \"throughput\" measures how long each process computes; with "
       "sync_batch_norm, this includes waiting for the others"},
      {R"({"data":{"split":"throughput","augment":[{"name":"mixup","scope":"global"}]}})",
       "f:1:18: /data/split: \"throughput\" would make the pairs of a mixup or cutmix with scope "
       "\"global\" "
       "depend on measured speed"},
      {R"({"parameters":[{"match":"*"}]})",
       "f:1:16: /parameters/0: needs \"learning_rate_factor\", \"weight_decay\" or \"frozen\""},
      {R"({"parameters":[{"frozen":true}]})", "f:1:16: /parameters/0: needs \"match\""},
      {R"({"parameters":[{"match":[],"frozen":true}]})",
       "f:1:25: /parameters/0/match: expected at least one glob, found a list"},
      {R"({"parameters":[{"match":"*","learning_rate_factor":0}]})",
       "f:1:52: /parameters/0/learning_rate_factor: expected a number above 0 and at most 1e+38 or "
       "null, found 0"},
      {R"({"launch":{"devices":["cpu","cpu"],"processes_per_node":3}})",
       "f:1:57: /launch/processes_per_node: is 3, but devices lists 2 (one process each); omit it "
       "or set it to \"auto\""},
      {R"({"report":{"tensorboard":false,"histograms":true}})",
       "f:1:45: /report/histograms: are written to TensorBoard's event files, but tensorboard is "
       "false"},
      {R"({"model_file":"metrics.jsonl"})",
       "f:1:15: /model_file: expected the name of a file in the run folder (relative, without "
       "\"..\") that the run does not write itself and that ends with .pt, .pth or .safetensors, "
       "found the string \"metrics.jsonl\""},
      {R"({"model_file":"checkpoints/m.pt"})",
       "f:1:15: /model_file: expected the name of a file in the run folder (relative, without "
       "\"..\") that the run does not write itself and that ends with .pt, .pth or .safetensors, "
       "found the string \"checkpoints/m.pt\""},
      {R"({"accuracies_file":"events.out.tfevents.1"})",
       "f:1:20: /accuracies_file: expected the name of a file in the run folder (relative, without "
       "\"..\") that the run does not write itself, found the string \"events.out.tfevents.1\""},
      {R"({"accuracies_file":"model.pt"})",
       "f:1:20: /accuracies_file: model_file and accuracies_file are equal, or one contains "
       "the other"},
      {R"({"model_file":"a.pt","accuracies_file":"a.pt/b"})",
       "f:1:40: /accuracies_file: model_file and accuracies_file are equal, or one contains "
       "the other"},
      {R"({"model_file":"model.bin"})",
       "f:1:15: /model_file: expected the name of a file in the run folder (relative, without "
       "\"..\") that the run does not write itself and that ends with .pt, .pth or .safetensors, "
       "found the string \"model.bin\""},
  }));
  CAPTURE(text);
  CHECK(lines_for(text) == std::vector<std::string>{line});
}

TEST_CASE("devices are checked one by one") {
  CHECK(lines_for(R"({"launch":{"devices":["cpu","cuda","cuda:0","cuda:999"]}})").empty());
  for (const char* device : {"", "CPU", "gpu", "cuda:", "cuda:01", "cuda:-1", "cuda:1000", "cuda:a",
                             "cuda:1 ", " cpu"}) {
    CAPTURE(device);
    CHECK(lines_for(std::string(R"({"launch":{"devices":[")") + device + "\"]}}").size() == 1);
  }
}

TEST_CASE("misspelled values get a suggestion") {
  using Case = std::pair<const char*, const char*>;
  const auto [text, hint] =
      GENERATE(values<Case>({{R"({"model":{"name":"resnet"}})", R"("resnet18"?)"},
                             {R"({"model":{"name":"resnet50"}})", R"("torchvision-resnet50"?)"},
                             {R"({"schedule":{"name":"cos"}})", R"("cosine"?)"}}));
  const auto lines = lines_for(text);
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], EndsWith(std::string("; did you mean ") + hint));
}

TEST_CASE("a rejected value or a misspelled key causes no other errors") {
  const auto* text = GENERATE(
      R"({"schedule":{"name":"plateu","patience":1,"factor":0.5}})",
      R"({"schedule":{"name":[],"pct_start":0.1}})", R"({"model":{"name":"mpl","hidden":[3]}})",
      R"({"model":{"nmae":"mlp","hidden":[3]}})", R"({"model":{"init":{"name":"norml","std":1}}})",
      R"({"data":{"format":"imagefolder","train":"a","test":0.2,"on_bad_sample":"skip"}})",
      R"({"data":{"formmat":"idx","train":"a","test":0.2}})",
      R"({"format":"idx","data":{"train":"a","test":0.2}})",
      R"({"data":{"format":"idx","trian":"a","test":0.2}})",
      R"({"data":{"sise":40,"augment":[{"name":"random_crop","size":32}]}})",
      R"({"data":{"augment":[{"name":"random_crop","sise":32}]}})",
      R"({"data":{"augment":[{"name":"color_jitter","heu":0.1}]}})",
      R"({"parameters":[{"macth":"x","frozen":true}]})", R"({"early_stopping":{"patiense":3}})",
      R"({"epochs":"20","schedule":{"warmup_epochs":15}})",
      R"({"model_file":"a","accuracies_file":"model.pt"})");
  CAPTURE(text);
  CHECK(lines_for(text).size() == 1);
}

TEST_CASE("errors that do not depend on a rejected value are reported with it") {
  CHECK(lines_for(R"({"data":{"format":"idx","fit":"corp","train":5,"decode":"dali"}})").size() ==
        4);
  CHECK(lines_for(R"({"optimizer":"adam","nesterov":true,"epochs":0})").size() == 2);
}

/// Tests each kind of limit; check/config_keys compares all limits with the documentation.
TEST_CASE("values out of range are refused, not clipped") {
  for (const char* pair :
       {R"("epochs":0)", R"("epochs":2147483648)", R"("learning_rate":-0.01)",
        R"("learning_rate":1e39)", R"("sgd_momentum":1)", R"("seed":-1)",
        R"("seed":9223372036854775808)", R"("stop_at_accuracy":1.01)",
        R"("schedule":{"name":"one_cycle","max_learning_rate":0})",
        R"("schedule":{"name":"one_cycle","max_learning_rate":1,"pct_start":1})",
        R"("early_stopping":{"patience":1,"min_delta":-0.1})", R"("ema":{"decay":1})",
        R"("ema":0.999)", R"("launch":{"processes_per_node":1025})",
        R"("launch":{"hang_timeout_s":1e7})", R"("adam_epsilon":1e-300)",
        R"("data":{"normalize":{"std":1e-300}})", R"("data":{"normalize":{"std":0}})"}) {
    CAPTURE(pair);
    const auto lines = lines_for(std::string("{") + pair + "}");
    REQUIRE(lines.size() == 1);
    CHECK_THAT(lines[0], ContainsSubstring(": expected "));
  }
  // A number that would underflow to 0 is refused, too.
  CHECK(lines_for(R"({"learning_rate":1e-999,"weight_decay":-0.00e5})") ==
        std::vector<std::string>{"f:1:18: /learning_rate: expected a number from 0 to 1e+38, found "
                                 "1e-999, which is too small for a 64-bit float"});
}

}  // namespace mnist_train::settings
