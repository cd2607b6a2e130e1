"""The kernels at a terminal: python -m helpers.kernels bench | compile."""

import argparse
import sys


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.kernels", description="Measure the kernels, or compile them."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    bench = commands.add_parser(
        "bench", help="time every kernel beside its peers (needs a GPU)"
    )
    bench.add_argument(
        "--shapes",
        nargs="+",
        metavar="MxDxH",
        help="tokens x dim x hidden, as 8192x768x3072 (default: the four of notebook 08)",
    )
    bench.add_argument("--csv", metavar="FILE", help="write the whole table there as well")
    compile_ = commands.add_parser(
        "compile", help="registers, spills and shared memory, no GPU"
    )
    compile_.add_argument(
        "--arch",
        default="75,80,89,90,100",
        metavar="75,80,...",
        help="capabilities without the point (default: %(default)s)",
    )
    chosen = parser.parse_args(arguments)

    # Imported here: compiling needs no torch.
    if chosen.command == "compile":
        from helpers.kernels import cross_compile

        return cross_compile.command(chosen.arch)
    from helpers.kernels import bench as benchmark

    try:
        return benchmark.main(chosen.shapes, chosen.csv)
    except (RuntimeError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
