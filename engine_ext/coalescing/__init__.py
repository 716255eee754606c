"""Final-chunk coalescing: a prompt's last span in one pass, with every retained recurrent state exported on the way.

`plan` is pure. `scheduler`, `manager` and `spare` run in the engine core, `worker` and the `forward_*` modules in the
process that holds the model; `patches` lists what they replace in vLLM.
"""
