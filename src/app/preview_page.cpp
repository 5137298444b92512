#include "app/preview_page.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mnist_train::app {

namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kGap = 3;  // pixels between images, and around the page

std::int64_t columns_of(const RankPreview& preview) {
  const auto count = static_cast<double>(preview.facts.size());
  return std::max<std::int64_t>(1, std::llround(std::ceil(std::sqrt(count))));
}

/// Returns the height of a grid and the gap below it, if `step` pixels are from row to row.
std::int64_t grid_height(const RankPreview& preview, std::int64_t step) {
  const auto count = static_cast<std::int64_t>(preview.facts.size());
  return (count + columns_of(preview) - 1) / columns_of(preview) * step + 3 * kGap;
}

/// Returns the label, or two for a mixed image, under `key` and "other_" + `key` of the facts.
std::string caption(const ordered_json& facts, const std::string& key) {
  const auto text = [&facts](const std::string& name) {
    const ordered_json& value = facts.at(name);
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  return text(key) + (facts.contains("other_" + key) ? "+" + text("other_" + key) : "");
}

/// Puts image `index` of the preview on the picture.
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

std::string RankPreview::to_text() const {
  const ordered_json head{
      {"channels", channels}, {"height", height}, {"width", width}, {"facts", facts}};
  return head.dump() + '\n' + planes;
}

RankPreview RankPreview::from_text(const std::string& text) {
  const std::size_t end = text.find('\n');
  const ordered_json head = ordered_json::parse(text.substr(0, end));
  return {head.at("channels"), head.at("height"), head.at("width"), text.substr(end + 1),
          head.at("facts").get<std::vector<ordered_json>>()};
}

std::int64_t comfortable_scale(const std::vector<RankPreview>& previews) {
  constexpr std::int64_t kComfortable = 96;  // pixels of an image's longer side
  constexpr std::int64_t kWidest = 4096;     // pixels of the page
  const std::int64_t side = std::max(previews.front().height, previews.front().width);
  std::int64_t columns = 1;
  for (const RankPreview& preview : previews) columns = std::max(columns, columns_of(preview));
  const std::int64_t wanted = (kComfortable + side - 1) / side;
  return std::max<std::int64_t>(1, std::min(wanted, kWidest / (columns * side)));
}

PreviewPage draw_page(const std::vector<RankPreview>& previews, std::int64_t scale) {
  constexpr std::uint8_t kWhite = 255;
  const RankPreview& first = previews.front();
  const std::int64_t row_step = first.height * scale + kGap;
  const std::int64_t column_step = first.width * scale + kGap;
  PreviewPage page{{kGap, 0, first.channels == 3 ? 3 : 1, {}}, ordered_json::array()};
  imaging::Image& picture = page.picture;
  for (const RankPreview& preview : previews) {
    picture.height += grid_height(preview, row_step);
    picture.width = std::max(picture.width, kGap + columns_of(preview) * column_step);
  }
  picture.pixels.assign(picture.bytes(), kWhite);
  std::int64_t top = kGap;
  for (const RankPreview& preview : previews) {
    ordered_json grid{{"rank", page.grids.size()}, {"images", preview.facts}};
    for (std::size_t i = 0; i < preview.facts.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      const std::int64_t y = top + index / columns_of(preview) * row_step;
      const std::int64_t x = kGap + index % columns_of(preview) * column_step;
      paste(preview, index, picture, y, x, scale);
      grid["images"][i]["top"] = y;
      grid["images"][i]["left"] = x;
    }
    page.grids.push_back(std::move(grid));
    top += grid_height(preview, row_step);
  }
  return page;
}

}  // namespace mnist_train::app
