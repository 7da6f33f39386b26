"""The names of PyTorch's own module for lazy tensors, for programs that use them."""

from magneto import lazy
from magneto.lazy import backend

_mark_step = lazy.mark_step
_wait_device_ops = lazy.wait_device_ops
_sync_multi = lazy.sync_multi
_get_tensor_id = lazy.get_tensor_id
_get_tensors_text = lazy.get_tensors_text
_get_tensors_dot = lazy.get_tensors_dot
_get_tensors_backend = lazy.get_tensors_backend
_get_graph_hash = lazy.get_graph_hash
_get_default_device_type = lazy.get_default_device_type
_set_force_fallback = lazy.set_force_fallback
_get_force_fallback = lazy.get_force_fallback
_set_reuse_ir = lazy.set_reuse_ir
_clear_ir_cache = lazy.clear_ir_cache
_dump_ir_cache = lazy.dump_ir_cache
_set_symbolic_shape_mode = lazy.set_symbolic_shape_mode
_get_symbolic_shape_mode = lazy.get_symbolic_shape_mode
_reset_metrics = lazy.reset_metrics
_counter_names = lazy.counter_names
_counter_value = lazy.counter_value
_metrics_report = lazy.metrics_report

_init = backend.init
_get_tensors_ts_device_data_node = backend.get_tensors_device_data_node
_run_cached_graph = backend.run_cached_graph
_get_latest_computation_graph = backend.get_latest_computation_graph
