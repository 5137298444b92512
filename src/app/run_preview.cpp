#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "accelerator/device.h"
#include "app/commands.h"
#include "app/data_and_model.h"
#include "app/preview_page.h"
#include "base/file.h"
#include "base/log.h"
#include "base/print.h"
#include "imaging/codec.h"
#include "loader/batch_source.h"
#include "train/batch_partition.h"

namespace mnist_train::app {

namespace {

/// Appends a copy of the batch, in host memory, to `all`, which may be empty.
void append(loader::Batch& all, loader::Batch batch) {
  for (std::size_t part = 0; part < all.tensors().size(); ++part) {
    at::Tensor& rows = *all.tensors()[part];
    at::Tensor more = *batch.tensors()[part];
    if (!more.defined()) continue;
    more = accelerator::to_host(more);
    rows = rows.defined() ? at::cat({rows, more}) : more.clone();
  }
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
  RankPreview preview{batch.images.size(1),
                      batch.images.size(2),
                      batch.images.size(3),
                      bytes_of(batch.images, normalize),
                      {}};
  for (std::int64_t i = 0; i < batch.size(); ++i) {
    nlohmann::ordered_json facts{{"sample", samples[static_cast<std::size_t>(i)]}};
    const auto add_class = [&](const std::string& prefix, const at::Tensor& labels) {
      const auto label = labels[i].item<std::int64_t>();
      facts[prefix + "label"] = label;
      if (dataset.class_names.empty()) return;
      facts[prefix + "class"] = dataset.class_names[static_cast<std::size_t>(label)];
    };
    add_class("", batch.labels);
    if (batch.is_mixed()) {
      add_class("other_", batch.other_labels);
      facts["weight"] = batch.weights[i].item<float>();
    }
    preview.facts.push_back(std::move(facts));
  }
  return preview;
}

/// Returns the text for a terminal: size and classes of the images.
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
  select_kernels(worker);  // as in training, so that the images are the same
  const settings::RunConfig& config = worker.config;
  const data::Dataset dataset = open_dataset(worker, data::Splits::kTrain);
  const auto normalize = settings::effective_normalize(config.data, dataset.train.channels);
  const auto images =
      loader::make_batch_source(dataset.train, normalize, worker.device(), at::kFloat,
                                make_augmenter(worker, dataset.train, /*exchanges=*/true));
  const auto split = train::make_batch_partition(
      {settings::Split::kEven, dataset.train_parts, config.train.shards}, worker.communicator,
      worker.device());
  const std::vector<std::int64_t> order =
      split->order(images->count(), config.train.seed, /*epoch=*/0);
  images->set_order(order, 0);
  const int world_size = worker.identity.world_size;
  const std::int64_t batch_size = settings::global_batch_size(config.train, world_size);
  const data::Range global{0, std::min(batch_size, images->count())};
  loader::Batch batch;
  std::vector<std::int64_t> samples;
  const data::Range own = split->own_shards();
  for (std::int64_t number = own.begin; number < own.end; ++number) {
    const data::Range shard = split->shard(global, number);
    const data::Range next = split->shard(global, (number + 1) % split->shards());
    append(batch, images->gather(shard, next));
    samples.insert(samples.end(), order.begin() + shard.begin, order.begin() + shard.end);
  }
  const auto texts =
      worker.communicator.gather_text(preview_of(batch, samples, dataset, normalize).to_text());
  if (worker.is_rank0()) write_page(worker, texts);
}

}  // namespace mnist_train::app
