"""The course's toolbox: one idea a module, imported where it is used.

    recording   recorded(name, measure): measure here, or show what another GPU measured
    device      which accelerator this is, its peaks and its measured ceilings
    timing      how long a call takes: for the host, for the GPU, for you
    capture     a profile that checks itself
    roofline    FLOPs, bytes and the floor they set
    exercises   check, guess and the ladder
    display     tables and Markdown, in a notebook or a terminal
    plots       one function a picture; the look lives in course.mplstyle
    doctor      what this machine can do in the course
    run         execute the notebooks, or record new measurements

At a terminal: `python -m helpers doctor`, `python -m helpers run`, `python -m helpers record`.
Importing this package loads nothing: import the module you need, `from helpers import timing`.
"""
