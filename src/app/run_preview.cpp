#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "accelerator/device.h"
#include "app/build_trainer.h"
#include "app/commands.h"
#include "app/open_dataset.h"
#include "app/preview_page.h"
#include "app/select_kernels.h"
#include "base/file.h"
#include "base/log.h"
#include "base/print.h"
#include "imaging/codec.h"
#include "loader/batch_source.h"
#include "train/batch_partition.h"

namespace mnist_train::app {

namespace {

/// Returns a copy of the batch in the host's memory.
loader::Batch copy_on_host(loader::Batch batch) {
  for (at::Tensor* tensor : batch.tensors()) {
    if (tensor->defined()) *tensor = accelerator::to_host(*tensor).clone();
  }
  return batch;
}

/// Returns the batches as one.
loader::Batch joined(std::vector<loader::Batch> batches) {
  loader::Batch all = batches.front();
  for (std::size_t i = 1; i < batches.size(); ++i) {
    for (std::size_t part = 0; part < all.tensors().size(); ++part) {
      at::Tensor& tensor = *all.tensors()[part];
      if (tensor.defined()) tensor = at::cat({tensor, *batches[i].tensors()[part]});
    }
  }
  return all;
}

/// Returns the bytes that normalised images, [n,C,H,W], were made from.
std::string bytes_of(const at::Tensor& images, const settings::NormalizeOptions& normalize) {
  const at::Tensor bytes = images.mul(loader::per_channel(normalize.std, at::kCPU))
                               .add(loader::per_channel(normalize.mean, at::kCPU))
                               .mul(255)
                               .round()
                               .clamp(0, 255)
                               .to(at::kByte)
                               .contiguous();
  return {reinterpret_cast<const char*>(bytes.const_data_ptr<std::uint8_t>()),
          static_cast<std::size_t>(bytes.numel())};
}

RankPreview preview_of(const loader::Batch& batch, const std::vector<std::int64_t>& samples,
                       const data::Dataset& dataset, const settings::NormalizeOptions& normalize) {
  RankPreview preview;
  preview.channels = batch.images.size(1);
  preview.height = batch.images.size(2);
  preview.width = batch.images.size(3);
  preview.planes = bytes_of(batch.images, normalize);
  const auto name_class = [&dataset](nlohmann::ordered_json& facts, const char* key,
                                     std::int64_t label) {
    if (!dataset.class_names.empty()) {
      facts[key] = dataset.class_names[static_cast<std::size_t>(label)];
    }
  };
  for (std::int64_t i = 0; i < batch.size(); ++i) {
    const auto label = batch.labels[i].item<std::int64_t>();
    nlohmann::ordered_json facts{{"sample", samples[static_cast<std::size_t>(i)]},
                                 {"label", label}};
    name_class(facts, "class", label);
    if (batch.is_mixed()) {
      const auto other = batch.other_labels[i].item<std::int64_t>();
      facts["other_label"] = other;
      name_class(facts, "other_class", other);
      facts["weight"] = batch.weights[i].item<float>();
    }
    preview.facts.push_back(std::move(facts));
  }
  return preview;
}

/// Returns the text that a terminal shows: the size of the images, and their classes.
std::string summary_of(const std::vector<RankPreview>& previews, const std::string& output,
                       std::int64_t scale) {
  std::size_t images = 0;
  for (const RankPreview& preview : previews) images += preview.facts.size();
  const RankPreview& first = previews.front();
  std::string text = fmt::format("{}: {} images of {}x{}x{}", on_one_line(output), images,
                                 first.channels, first.height, first.width);
  if (scale > 1) text += fmt::format(", enlarged {} times", scale);
  text += "\n";
  for (std::size_t rank = 0; rank < previews.size(); ++rank) {
    text += fmt::format("process {}, classes by row:\n", rank);
    text += escape_control_bytes(classes_text(previews[rank]));
  }
  return text;
}

void write_page(const Worker& worker, const std::vector<std::string>& texts) {
  std::vector<RankPreview> previews;
  previews.reserve(texts.size());
  for (const std::string& text : texts) previews.push_back(RankPreview::from_text(text));
  const std::int64_t scale = worker.job.scale > 0 ? worker.job.scale : comfortable_scale(previews);
  const PreviewPage page = draw_page(previews, scale);
  const std::string output = worker.job.export_path.string();
  write_file_atomically(output, imaging::encode_png(page.picture), ExitCode::kRunFailed);
  const RankPreview& first = previews.front();
  if (!worker.job.as_json) return print_text(summary_of(previews, output, scale));
  print_result({{"output", output},
                {"channels", first.channels},
                {"height", first.height},
                {"width", first.width},
                {"scale", scale},
                {"processes", page.grids}});
}

}  // namespace

void run_preview(Worker& worker) {
  select_kernels(worker);  // so that images are what training gets
  const settings::RunConfig& config = worker.config;
  const data::Dataset dataset = open_dataset(worker, data::Splits::kTrain);
  const auto normalize = settings::effective_normalize(config.data, dataset.train.channels);
  const auto images = loader::make_batch_source(dataset.train, normalize, worker.device(),
                                                at::kFloat, make_augmenter(worker, dataset.train));
  const auto split = train::make_batch_partition(
      {settings::Split::kEven, dataset.train_parts, config.train.shards}, worker.communicator,
      worker.device());
  const std::vector<std::int64_t> order =
      split->order(images->count(), config.train.seed, /*epoch=*/0);
  images->set_order(order, 0);
  const int world_size = worker.identity.world_size;
  const std::int64_t batch_size = settings::global_batch_size(config.train, world_size);
  const data::Range global{0, std::min(batch_size, images->count())};
  std::vector<loader::Batch> shards;
  std::vector<std::int64_t> samples;
  const data::Range own = split->own_shards();
  for (std::int64_t number = own.begin; number < own.end; ++number) {
    const data::Range shard = split->shard(global, number);
    const data::Range next = split->shard(global, (number + 1) % split->shards());
    shards.push_back(copy_on_host(images->gather(shard, next)));
    samples.insert(samples.end(), order.begin() + shard.begin, order.begin() + shard.end);
  }
  const loader::Batch batch = joined(shards);
  const auto texts =
      worker.communicator.gather_text(preview_of(batch, samples, dataset, normalize).to_text());
  if (worker.is_rank0()) write_page(worker, texts);
}

}  // namespace mnist_train::app
