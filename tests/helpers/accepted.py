"""In a command's stead: what is started has not been refused."""


def main(cfg):
    raise SystemExit("accepted")
