"""The command line of records: options made from the fields of dataclasses, and their parser."""
