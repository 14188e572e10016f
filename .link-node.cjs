'use strict';

/*
 * Run by npm after `npm ci` and `npm install`: makes `node_modules/.bin/node`, the Node of all npm
 * scripts, lead to this package's own runtime. npm 11 and newer link it by themselves; npm 10 links
 * it and then removes it with the runtime of the other processor type, which it does not install.
 */

const fs = require('fs');
const path = require('path');

const runtime = path.join('..', `node-${process.platform}-${process.arch}`, 'bin', 'node');
const folder = path.join(__dirname, 'node_modules', '.bin');
const link = path.join(folder, 'node');

if (fs.existsSync(path.join(folder, runtime)) && !fs.existsSync(link)) {
  fs.symlinkSync(runtime, link);
}
