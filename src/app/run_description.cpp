#include <string>

#include "app/build_trainer.h"
#include "app/commands.h"
#include "app/open_dataset.h"
#include "base/print.h"
#include "report/module_table.h"

namespace mnist_train::app {

namespace {

std::int64_t parameters_of(const torch::nn::Module& module, bool with_children) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : module.parameters(with_children)) count += tensor.numel();
  return count;
}

/// Returns "Conv2d" of "torch::nn::Conv2dImpl" and of "(anonymous namespace)::Conv2d".
std::string class_of(const torch::nn::Module& module) {
  std::string name = module.name();
  name = name.substr(name.rfind(':') + 1);  // all of it where there is none
  return name.ends_with("Impl") ? name.substr(0, name.size() - 4) : name;
}

}  // namespace

void run_description(Worker& worker) {
  if (!worker.is_rank0()) return;
  const data::ImageSet images = images_trained_on(worker);
  const network::ImageShape input = model_input(worker.config, images);
  const auto model = make_model(worker.config, images);
  report::ModuleTable table;
  table.input = {input.channels, input.height, input.width};
  table.parameters = parameters_of(*model, /*with_children=*/true);
  table.multiply_adds = model->multiply_adds();
  if (const std::int64_t own = parameters_of(*model, /*with_children=*/false); own > 0) {
    table.rows.push_back({"", "(outside its modules)", {}, own, std::nullopt, false});
  }
  for (const auto& item : model->named_modules("", /*include_self=*/false)) {
    const torch::nn::Module& module = *item.value();
    const std::int64_t parameters = parameters_of(module, /*with_children=*/false);
    const bool is_container = parameters == 0 && !module.children().empty();
    table.rows.push_back(
        {item.key(), class_of(module), {}, parameters, std::nullopt, is_container});
  }
  print_text(worker.job.as_json ? json_text(report::to_json(table), 2) + "\n"
                                : report::to_text(table));
}

}  // namespace mnist_train::app
