"""The course's toolbox: one idea a module, imported where it is used.

    recording   recorded(name, measure): measure here, or show what another GPU measured
    device      which accelerator this is, its peaks and its measured ceilings
    timing      how long a call takes: for the host, for the GPU, for you
    capture     a profile that checks itself; verify(prof) checks one made by hand
    regime      working_or_waiting(fn): the verdict on a function of yours
    traces      read(path): a profiler's trace as linked tables; compare(a, b)
    diagnose    what limits a program, from its trace: regime, cause, evidence, remedies
    kernel_names  decode(name): what a kernel's name says
    op_costs    FLOPs and least bytes of an operator as a trace records it
    gpu_time    unions, gaps and overlaps of intervals
    perfetto    a button that opens a trace in ui.perfetto.dev
    programs    small programs with one planted cause each; quiz: six more, do not peek
    roofline    FLOPs, bytes, the floor they set, and where a kernel stands below the roof
    compiling   what a first call costs and why, guards, graph breaks, recompiles, break-even
    kernels     Triton kernels: a package with its own table of contents
    block       the running block: one GeGLU MLP, and its inputs
    fresh       run a function of a notebook in a Python process of its own
    published   figures quoted from articles
    exercises   check, guess and the ladder
    display     tables and Markdown, in a notebook or a terminal
    plots       one function a picture; the look lives in course.mplstyle
    doctor      what this machine can do in the course
    run         execute the notebooks, or record new measurements

Behind them, one idea each as well: storage, formats and origin (recording), timing_samples and
timing_devices (timing), profile_run, profile_table, profile_text and verify (capture), trace_*
(traces), diagnose_*, findings, gpu_work, idle, waits and remedies* (diagnose), kernel_*
(kernel_names), op_products and op_arguments (op_costs), work_counts and flop_count (roofline),
compiling_* (compiling), nvidia_smi (device), doctor_gpu (doctor), answers (exercises), picture
and plots_* (plots).

At a terminal: `python -m helpers diagnose TRACE`, `doctor`, `run` and `record`; and
`python -m helpers.kernels bench` and `compile`.
Importing this package loads nothing: import the module you need, `from helpers import timing`.
"""
