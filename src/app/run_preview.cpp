#include <ATen/core/Tensor.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "accelerator/device.h"
#include "app/commands.h"
#include "base/file.h"
#include "base/json.h"
#include "base/print.h"
#include "loader/batch_source.h"
#include "train/batch_partition.h"

namespace mnist_train::app {

namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kGap = 3;  // pixels around images; four times as many below each grid

std::int64_t columns_of(const RankPreview& preview) {
  const auto count = static_cast<double>(preview.facts.size());
  return std::max<std::int64_t>(1, std::llround(std::ceil(std::sqrt(count))));
}

/// Returns the value of `key`, such as "7", or both values of a mixed image, such as "7+3".
std::string caption(const ordered_json& facts, const std::string& key) {
  const auto text = [&facts](const std::string& name) {
    const ordered_json& value = facts.at(name);
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  return text(key) + (facts.contains("other_" + key) ? "+" + text("other_" + key) : "");
}

/// Draws image `index` of the preview into the picture.
void paste(const RankPreview& preview, std::int64_t index, imaging::Image& picture,
           std::int64_t top, std::int64_t left, std::int64_t scale) {
  for (std::int64_t channel = 0; channel < picture.channels; ++channel) {
    const std::int64_t plane = index * preview.channels + (preview.channels == 3 ? channel : 0);
    const char* in = preview.planes.data() + plane * preview.height * preview.width;
    for (std::int64_t y = 0; y < preview.height * scale; ++y) {
      for (std::int64_t x = 0; x < preview.width * scale; ++x) {
        const std::int64_t pixel = (top + y) * picture.width + left + x;
        picture.pixels[static_cast<std::size_t>(pixel * picture.channels + channel)] =
            static_cast<std::uint8_t>(in[y / scale * preview.width + x / scale]);
      }
    }
  }
}

/// Undoes the normalisation of images [n,C,H,W], and returns their bytes.
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

/// Appends a batch to the preview. `samples`: sample indices, beginning with those of the batch.
void append(RankPreview& preview, loader::Batch batch, std::span<const std::int64_t> samples,
            const data::Dataset& dataset, const settings::NormalizeOptions& normalize) {
  for (at::Tensor* part : batch.tensors()) {
    if (part->defined()) *part = accelerator::to_host(*part);
  }
  preview.channels = batch.images.size(1);
  preview.height = batch.images.size(2);
  preview.width = batch.images.size(3);
  preview.planes += bytes_of(batch.images, normalize);
  for (std::int64_t i = 0; i < batch.size(); ++i) {
    ordered_json facts{{"sample", samples[static_cast<std::size_t>(i)]}};
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
}

/// Returns the size and the classes of the images as text for a terminal.
std::string summary_of(const std::vector<RankPreview>& previews, const std::string& output,
                       std::int64_t scale) {
  std::int64_t images = 0;
  for (const RankPreview& preview : previews) images += std::ssize(preview.facts);
  const RankPreview& first = previews.front();
  std::string text = on_one_line(output) + ": " + counted(images, "image");
  text += fmt::format(" of {}x{}x{}", first.channels, first.height, first.width);
  if (scale > 1) text += fmt::format(", enlarged {} times", scale);
  text += "\n";
  for (std::size_t rank = 0; rank < previews.size(); ++rank) {
    text += fmt::format("process {}, classes by row:\n", rank);
    text += escape_control_bytes(classes_text(previews[rank]));
  }
  return text;
}

void write_page(const Worker& worker, const std::vector<RankPreview>& previews) {
  const std::int64_t scale = worker.job.scale > 0 ? worker.job.scale : default_scale(previews);
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

std::string classes_text(const RankPreview& preview) {
  std::vector<std::string> captions;
  std::size_t widest = 0;
  for (const ordered_json& facts : preview.facts) {
    captions.push_back(caption(facts, facts.contains("class") ? "class" : "label"));
    widest = std::max(widest, captions.back().size());
  }
  std::string text;
  const auto columns = static_cast<std::size_t>(columns_of(preview));
  for (std::size_t i = 0; i < captions.size(); ++i) {
    const bool ends_row = (i + 1) % columns == 0 || i + 1 == captions.size();
    text += "  " + captions[i];
    text += ends_row ? "\n" : std::string(widest - captions[i].size(), ' ');
  }
  return text;
}

std::int64_t default_scale(const std::vector<RankPreview>& previews) {
  constexpr std::int64_t kComfortableSide = 96;  // least longer side of enlarged images, in pixels
  constexpr std::int64_t kMaxPageWidth = 4096;   // of enlarged images, in pixels, without gaps
  const std::int64_t side = std::max(previews.front().height, previews.front().width);
  std::int64_t columns = 1;
  for (const RankPreview& preview : previews) columns = std::max(columns, columns_of(preview));
  const std::int64_t wanted = (kComfortableSide + side - 1) / side;
  return std::max<std::int64_t>(1, std::min(wanted, kMaxPageWidth / (columns * side)));
}

PreviewPage draw_page(const std::vector<RankPreview>& previews, std::int64_t scale) {
  constexpr std::uint8_t kWhite = 255;
  const RankPreview& first = previews.front();
  const std::int64_t row_step = first.height * scale + kGap;
  const std::int64_t column_step = first.width * scale + kGap;
  PreviewPage page{{kGap, 0, first.channels == 3 ? 3 : 1, {}}, ordered_json::array()};
  imaging::Image& picture = page.picture;
  for (const RankPreview& preview : previews) {
    picture.width = std::max(picture.width, kGap + columns_of(preview) * column_step);
  }
  for (const RankPreview& preview : previews) {
    const std::int64_t columns = columns_of(preview);
    const std::int64_t rows = (std::ssize(preview.facts) + columns - 1) / columns;
    const std::int64_t top =
        std::exchange(picture.height, picture.height + rows * row_step + 3 * kGap);
    picture.pixels.resize(picture.bytes(), kWhite);
    ordered_json grid{{"rank", page.grids.size()}, {"images", preview.facts}};
    for (std::size_t i = 0; i < preview.facts.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      const std::int64_t y = top + index / columns * row_step;
      const std::int64_t x = kGap + index % columns * column_step;
      paste(preview, index, picture, y, x, scale);
      grid["images"][i]["top"] = y;
      grid["images"][i]["left"] = x;
    }
    page.grids.push_back(std::move(grid));
  }
  return page;
}

void run_preview(Worker& worker) {
  prepare_kernels(worker);  // as in training, so that the images are the same
  const settings::RunConfig& config = worker.config;
  const data::Dataset dataset = open_dataset(worker, data::Splits::kTrain);
  const auto normalize = settings::effective_normalize(config.data, dataset.train.channels);
  const auto images =
      loader::make_batch_source(dataset.train, normalize, worker.device(), at::kFloat,
                                make_augmenter(worker, dataset.train, /*mixes_across_ranks=*/true));
  const auto split = train::make_batch_partition(
      {settings::Split::kEven, dataset.train_parts, config.train.shards}, worker.communicator,
      worker.device());
  const std::vector<std::int64_t> order =
      split->order_of(worker.identity.rank, images->count(), config.train.seed, /*epoch=*/0);
  images->set_order(order, 0);
  const int world_size = worker.identity.world_size;
  const std::int64_t batch_size = settings::global_batch_size(config.train, world_size);
  const data::Range global{0, std::min(batch_size, images->count())};
  RankPreview preview;
  const data::Range local = split->local_shards();
  for (std::int64_t number = local.begin; number < local.end; ++number) {
    const data::Range shard = split->shard(global, number);
    const data::Range next = split->shard(global, (number + 1) % split->shards());
    append(preview, images->gather({.range = shard, .next = next}),
           std::span(order).subspan(static_cast<std::size_t>(shard.begin)), dataset, normalize);
  }
  const auto planes = worker.communicator.gather_text(preview.planes);
  const auto facts = worker.communicator.gather_text(json_text(ordered_json(preview.facts)));
  if (!worker.is_rank0()) return;
  std::vector<RankPreview> previews(planes.size(), preview);
  for (std::size_t rank = 0; rank < previews.size(); ++rank) {
    previews[rank].planes = planes[rank];
    previews[rank].facts = ordered_json::parse(facts[rank]).get<std::vector<ordered_json>>();
  }
  write_page(worker, previews);
}

}  // namespace mnist_train::app
