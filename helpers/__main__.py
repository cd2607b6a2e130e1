"""The command line: python -m helpers doctor | diagnose TRACE | run [NN ...] | record."""

import argparse
import sys

from helpers import diagnose_command


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m helpers", description="The course's tools."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("doctor", help="say what this machine can do in the course")
    diagnose_command.add_to(commands)
    runner = commands.add_parser("run", help="execute the notebooks into build/")
    recorder = commands.add_parser("record", help="measure on this GPU and write data/")
    runner.add_argument("names", nargs="*", metavar="NN", help="only these, such as 01")
    only = "only these notebooks or recordings, such as 01 or 01_cost"
    recorder.add_argument("names", nargs="*", metavar="NN", help=only)
    chosen = parser.parse_args(arguments)

    # Imported here so that one command never needs what only another one uses.
    if chosen.command == "doctor":
        from helpers import doctor

        return doctor.main()
    if chosen.command == "diagnose":
        return diagnose_command.run(chosen)
    from helpers import run

    try:
        action = run.run if chosen.command == "run" else run.record
        return int(action(chosen.names) > 0)
    except run.RunError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
