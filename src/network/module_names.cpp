#include "network/module_names.h"

#include <algorithm>

namespace mnist_train::network {

namespace {

// dir(torch.nn.Sequential()) of PyTorch 2.11, sorted.
constexpr std::string_view kAttributes[] = {
    "T_destination",
    "add_module",
    "append",
    "apply",
    "bfloat16",
    "buffers",
    "call_super_init",
    "children",
    "compile",
    "cpu",
    "cuda",
    "double",
    "dump_patches",
    "eval",
    "extend",
    "extra_repr",
    "float",
    "forward",
    "get_buffer",
    "get_extra_state",
    "get_parameter",
    "get_submodule",
    "half",
    "insert",
    "ipu",
    "load_state_dict",
    "modules",
    "mtia",
    "named_buffers",
    "named_children",
    "named_modules",
    "named_parameters",
    "parameters",
    "pop",
    "register_backward_hook",
    "register_buffer",
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_load_state_dict_post_hook",
    "register_load_state_dict_pre_hook",
    "register_module",
    "register_parameter",
    "register_state_dict_post_hook",
    "register_state_dict_pre_hook",
    "requires_grad_",
    "set_extra_state",
    "set_submodule",
    "share_memory",
    "state_dict",
    "to",
    "to_empty",
    "train",
    "training",
    "type",
    "xpu",
    "zero_grad",
};
static_assert(std::ranges::is_sorted(kAttributes));

}  // namespace

bool is_free_in_python(std::string_view name) {
  return !name.starts_with('_') && !std::ranges::binary_search(kAttributes, name);
}

}  // namespace mnist_train::network
