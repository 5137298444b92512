#include "app/preview_page.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mnist_train::app {

namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kGap = 3;  // pixels between images, and around all
constexpr std::uint8_t kPaper = 255;

std::int64_t columns_of(const RankPreview& preview) {
  const auto count = static_cast<double>(preview.facts.size());
  return std::max<std::int64_t>(1, std::llround(std::ceil(std::sqrt(count))));
}

std::int64_t rows_of(const RankPreview& preview) {
  const auto count = static_cast<std::int64_t>(preview.facts.size());
  return (count + columns_of(preview) - 1) / columns_of(preview);
}

/// Returns the label, or two for a mixed image, under `key` and "other_" + `key` of the facts.
std::string caption(const ordered_json& facts, const std::string& key) {
  const auto text = [&facts](const std::string& name) {
    const ordered_json& value = facts.at(name);
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  return text(key) + (facts.contains("other_" + key) ? "+" + text("other_" + key) : "");
}

/// Sizes of an image on the page, in pixels.
struct PageLayout {
  std::int64_t scale;
  std::int64_t height;
  std::int64_t width;

  PageLayout(const RankPreview& preview, std::int64_t image_scale)
      : scale(image_scale),
        height(preview.height * image_scale),
        width(preview.width * image_scale) {}

  std::int64_t height_of(const RankPreview& preview) const {
    return rows_of(preview) * (height + kGap) + 3 * kGap;
  }
  std::int64_t width_of(const RankPreview& preview) const {
    return columns_of(preview) * (width + kGap);
  }
};

/// Draws grids from the top to the bottom of a page.
class PageWriter {
 public:
  PageWriter(PreviewPage& page, const PageLayout& layout) : page_(page), layout_(layout) {}

  void add(const RankPreview& preview, std::size_t rank) {
    ordered_json grid{{"rank", rank}, {"images", ordered_json::array()}};
    const std::int64_t columns = columns_of(preview);
    for (std::size_t i = 0; i < preview.facts.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      const std::int64_t row = index / columns;
      const std::int64_t y = top_ + row * (layout_.height + kGap);
      const std::int64_t x = kGap + index % columns * (layout_.width + kGap);
      paste(preview, index, y, x);
      ordered_json facts = preview.facts[i];
      facts["top"] = y;
      facts["left"] = x;
      grid["images"].push_back(std::move(facts));
    }
    page_.grids.push_back(std::move(grid));
    top_ += layout_.height_of(preview);
  }

 private:
  void paste(const RankPreview& preview, std::int64_t index, std::int64_t top, std::int64_t left) {
    imaging::Image& picture = page_.picture;
    const std::int64_t pixels = preview.height * preview.width;
    for (std::int64_t channel = 0; channel < picture.channels; ++channel) {
      const std::int64_t plane = index * preview.channels + (preview.channels == 3 ? channel : 0);
      const char* in = preview.planes.data() + plane * pixels;
      for (std::int64_t at = 0; at < layout_.height * layout_.width; ++at) {
        const std::int64_t y = at / layout_.width;
        const std::int64_t x = at % layout_.width;
        const std::int64_t out =
            ((top + y) * picture.width + left + x) * picture.channels + channel;
        picture.pixels[static_cast<std::size_t>(out)] =
            static_cast<std::uint8_t>(in[y / layout_.scale * preview.width + x / layout_.scale]);
      }
    }
  }

  PreviewPage& page_;
  PageLayout layout_;
  std::int64_t top_ = kGap;
};

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
  RankPreview preview;
  head.at("channels").get_to(preview.channels);
  head.at("height").get_to(preview.height);
  head.at("width").get_to(preview.width);
  head.at("facts").get_to(preview.facts);
  preview.planes = text.substr(end + 1);
  return preview;
}

std::int64_t comfortable_scale(const std::vector<RankPreview>& previews) {
  constexpr std::int64_t kComfortable = 96;  // pixels of an image's longer side
  constexpr std::int64_t kWidest = 4096;     // pixels of the page
  const RankPreview& first = previews.front();
  const std::int64_t side = std::max(first.height, first.width);
  std::int64_t columns = 1;
  for (const RankPreview& preview : previews) columns = std::max(columns, columns_of(preview));
  const std::int64_t wanted = (kComfortable + side - 1) / side;
  return std::max<std::int64_t>(1, std::min(wanted, kWidest / (columns * side)));
}

PreviewPage draw_page(const std::vector<RankPreview>& previews, std::int64_t scale) {
  const PageLayout layout(previews.front(), scale);
  std::int64_t height = kGap;
  std::int64_t width = 0;
  for (const RankPreview& preview : previews) {
    height += layout.height_of(preview);
    width = std::max(width, layout.width_of(preview));
  }
  PreviewPage page;
  page.picture = {height, kGap + width, previews.front().channels == 3 ? 3 : 1, {}};
  page.picture.pixels.assign(page.picture.bytes(), kPaper);
  page.grids = ordered_json::array();
  PageWriter writer(page, layout);
  for (std::size_t rank = 0; rank < previews.size(); ++rank) writer.add(previews[rank], rank);
  return page;
}

}  // namespace mnist_train::app
